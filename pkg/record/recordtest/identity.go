package recordtest

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"time"

	"github.com/zeebo/xxh3"

	"sluice/pkg/record"
)

// identify adds the columns that say which other rows are the same record, and
// the id that queries show. The row has id as sent, timestamp, partition and
// position.
func identify(row map[string]any, raw []byte, received time.Time) {
	id := row["id"].(string)
	switch {
	case positioned(raw, received):
		row["kind"], row["identity"] = int64(record.ByPosition), ""
	case id != "":
		row["kind"], row["identity"] = int64(record.ByContent), string(contentHash(raw, ""))
	default:
		row["kind"] = int64(record.ByPlace) // its identity is not in the record
	}
	if id == "" {
		row["id"] = missingID(raw, received)
	}
	row["own_id"] = row["id"]
	if row["id"] == fmt.Sprintf("%d-%d", row["partition_id"], row["position"]) {
		row["own_id"] = ""
	}
}

// positioned says whether a record is known by its position.
func positioned(raw []byte, received time.Time) bool {
	o := decode(raw)
	for _, name := range []string{"partitionId", "position"} {
		if !o.has(name) {
			return false
		}
		if n, code := integer(o[name]); code != "" || n < 1 {
			return false
		}
	}
	if !o.has("timestamp") {
		return false
	}
	ms, code := milliseconds(o["timestamp"])
	return code == "" && plausible(ms, received)
}

// missingID returns the id that queries show of a record that was sent without
// one.
func missingID(raw []byte, received time.Time) string {
	if !positioned(raw, received) {
		return "h-" + hex.EncodeToString(contentHash(raw, "id"))
	}
	o := decode(raw)
	partition, _ := integer(o["partitionId"])
	position, _ := integer(o["position"])
	return fmt.Sprintf("%d-%d", partition, position)
}

// contentHash is the hash of all that a record says, without one of its members.
func contentHash(raw []byte, without string) []byte {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return digest(d, without)
}

// digest hashes the next value of d: texts and what is neither array nor object
// by themselves, arrays element after element, objects by the sum of their
// members.
func digest(d *json.Decoder, without string) []byte {
	token, err := d.Token()
	if err != nil {
		panic(err)
	}
	zero := make([]byte, 16)
	switch token := token.(type) {
	case string:
		return hash([]byte(token), 1)
	case nil:
		return hash([]byte("null"), 2)
	case json.Delim:
		if token == '[' {
			sum := zero
			for d.More() {
				sum = hash(append(sum, digest(d, "")...), 3)
			}
			d.Token()
			return hash(append(sum, zero...), 3)
		}
		sum := new(big.Int)
		for d.More() {
			name, _ := d.Token()
			content := digest(d, "")
			if without == "" || name != without {
				sum.Add(sum, new(big.Int).SetBytes(hash(append(hash([]byte(name.(string)), 1), content...), 4)))
			}
		}
		d.Token()
		sum.Mod(sum, new(big.Int).Lsh(big.NewInt(1), 128))
		return hash(append(sum.FillBytes(make([]byte, 16)), zero...), 5)
	}
	return hash([]byte(fmt.Sprint(token)), 2) // a json.Number or a bool
}

func hash(b []byte, seed uint64) []byte {
	sum := xxh3.Hash128Seed(b, seed).Bytes()
	return sum[:]
}
