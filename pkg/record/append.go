package record

// decoder is the scratch memory of Columns.Append.
type decoder struct {
	plain []byte // the message's body, decompressed
}
