package record

// Limits bounds what one request may hold. A zero field means its default.
type Limits struct {
	Records     int // records in one request; default 50 000
	RecordBytes int // bytes of one record as posted; default 8 MiB
	Depth       int // nesting of one record, itself counted; default 64, at most 1000

	Tenants []string // whose records may be posted; nil for all, empty for none

	Mask *Mask // members whose values are secrets; default those called password

	Shaped bool // refuse objects that have no member of a record: other JSON than records
}

func (l Limits) withDefaults() Limits {
	if l.Records == 0 {
		l.Records = 50_000
	}
	if l.RecordBytes == 0 {
		l.RecordBytes = 8 << 20
	}
	if l.Depth == 0 {
		l.Depth = 64
	}
	l.Depth = min(l.Depth, deepest)
	if l.Mask == nil {
		l.Mask = defaultMask
	}
	return l
}

const (
	// deepest is the nesting the ingester still follows. It bounds the stack.
	deepest = 1000

	// maxProblems is how many problems of a request are told.
	maxProblems = 100
)
