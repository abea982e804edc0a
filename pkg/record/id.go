package record

import (
	"bytes"
	"encoding/hex"
	"encoding/json"

	"github.com/zeebo/xxh3"
)

// Hash returns the hex of the 128-bit hash of a body.
func Hash(body []byte) string {
	sum := xxh3.Hash128(body).Bytes()
	return hex.EncodeToString(sum[:])
}

// contentID returns the id of a record that was sent without one: a hash of
// what it says, so that the same record sent again has the same id, however it
// is laid out. Rare, so it takes the slow way.
func contentID(raw []byte) []byte {
	var record map[string]any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	canonical := raw
	if d.Decode(&record) == nil {
		delete(record, "id") // null, empty or missing: all the same
		if sorted, err := json.Marshal(record); err == nil {
			canonical = sorted
		}
	}
	return []byte("h-" + Hash(canonical))
}

// splitID reads an id of the form <partition>-<position>; zeros otherwise.
func splitID(id []byte) (partition, position int64) {
	n := digits(id, 0)
	if n == 0 || n == len(id) || id[n] != '-' || n+1 < len(id) && id[n+1] == '-' {
		return 0, 0
	}
	first, code1 := decimal(id[:n])
	second, code2 := decimal(id[n+1:])
	if code1 != "" || code2 != "" {
		return 0, 0
	}
	return first, second
}
