package record

import (
	"encoding/hex"

	"github.com/zeebo/xxh3"
)

// contentID appends the id that people see of a record that was sent without
// one and tells no position: a hash of what it says beside its id. It does not
// make two records one.
func (w *walker) contentID(dst []byte, content xxh3.Uint128) []byte {
	if id := w.get(fieldID); id.kind != kindNone {
		content = subtract(content, w.hashScalar(fieldHashes[fieldID], id))
	}
	b := content.Bytes()
	return hex.AppendEncode(append(dst, "h-"...), b[:])
}

// splitID reads an id of the form <partition>-<position>; zeros otherwise.
// plain says that it is written as we would write it.
func splitID(id []byte) (partition, position int64, plain bool) {
	n := digits(id, 0)
	if n == 0 || n == len(id) || id[n] != '-' {
		return 0, 0, false
	}
	first, second := id[:n], id[n+1:]
	if len(second) == 0 || len(first) > 18 || len(second) > 18 || digits(second, 0) < len(second) {
		return splitLong(first, second)
	}
	return small(first), small(second), (first[0] != '0' || n == 1) && (second[0] != '0' || len(second) == 1)
}

// splitLong is splitID for numbers that may not fit 64 bits, or be none.
func splitLong(first, second []byte) (partition, position int64, plain bool) {
	if len(second) > 0 && second[0] == '-' {
		return 0, 0, false
	}
	partition, code1 := decimal(first)
	position, code2 := decimal(second)
	if code1 != "" || code2 != "" {
		return 0, 0, false
	}
	return partition, position, first[0] != '0' && second[0] != '0'
}
