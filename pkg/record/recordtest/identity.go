package recordtest

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"

	"github.com/zeebo/xxh3"

	"sluice/pkg/flow"
)

// identify adds the columns of the deduplication key, and the id that queries show. The row has the id as sent,
// timestamp, partition, and position.
func identify(row map[string]any, raw []byte) {
	id := row["id"].(string)
	switch {
	case positioned(raw):
		row["kind"], row["identity"] = int64(flow.ByPosition), ""
	case id != "":
		row["kind"], row["identity"] = int64(flow.ByContent), string(contentHash(raw, false)[8:])
	default:
		row["kind"] = int64(flow.ByPlace) // its identity is not in the record
	}
	if id == "" {
		row["id"] = missingID(raw)
	}
	row["own_id"] = row["id"]
	if row["id"] == fmt.Sprintf("%d-%d", row["partition_id"], row["position"]) && row["partition_id"].(int64) >= 0 && row["position"].(int64) >= 0 {
		row["own_id"] = ""
	}
}

// positioned reports whether a record is identified by position.
func positioned(raw []byte) bool {
	o := decode(raw)
	for _, name := range []string{"partitionId", "position"} {
		if !o.has(name) {
			return false
		}
		if n, code := integer(o[name]); code != "" || n < 1 || name == "partitionId" && n > 8191 {
			return false
		}
	}
	if !o.has("timestamp") {
		return false
	}
	ms, code := milliseconds(o["timestamp"])
	return code == "" && plausible(ms)
}

// missingID returns the id that queries show for a record sent without one.
func missingID(raw []byte) string {
	if !positioned(raw) {
		return "h-" + hex.EncodeToString(contentHash(raw, true))
	}
	o := decode(raw)
	partition, _ := integer(o["partitionId"])
	position, _ := integer(o["position"])
	return fmt.Sprintf("%d-%d", partition, position)
}

// Same reports whether two records have the same members, repeated ones too, in any order.
func Same(a, b []byte) bool {
	return Canonical(a) == Canonical(b) && bytes.Equal(contentHash(a, false), contentHash(b, false))
}

// contentHash is the hash of all members of a record, or with withoutID of all but the id.
func contentHash(raw []byte, withoutID bool) []byte {
	sum := objectSum(raw)
	if id, there := decode(raw)["id"]; there && withoutID {
		sum.Sub(sum, memberHash(nameHash("id"), id))
	}
	return modulo(sum)
}

// objectSum adds up the members of an object, repeated ones included.
func objectSum(raw json.RawMessage) *big.Int {
	sum := new(big.Int)
	d := json.NewDecoder(bytes.NewReader(raw))
	d.Token()
	for d.More() {
		name, _ := d.Token()
		sum.Add(sum, memberHash(nameHash(name.(string)), next(d)))
	}
	return sum
}

// arraySum does the same for an array, whose elements are named by their indexes.
func arraySum(raw json.RawMessage) *big.Int {
	sum := new(big.Int)
	for i, element := range elements(raw) {
		sum.Add(sum, memberHash(uint64(i), element))
	}
	return sum
}

// memberHash is the contribution of a member to its object.
func memberHash(name uint64, content json.RawMessage) *big.Int {
	switch content[0] {
	case '"':
		s, _ := text(content)
		return hash([]byte(s), name+1)
	case '{':
		return hash(modulo(objectSum(content)), name+3)
	case '[':
		return hash(modulo(arraySum(content)), name+4)
	}
	if n, ok := new(big.Int).SetString(string(content), 10); ok && wholeNumber.Match(content) {
		factor := hash(nil, name+5)
		factor.SetBit(factor, 0, 1)
		return n.Mul(n, factor)
	}
	return hash(content, name+2)
}

var wholeNumber = regexp.MustCompile(`^-?[0-9]{1,18}$`)

func next(d *json.Decoder) (raw json.RawMessage) {
	if err := d.Decode(&raw); err != nil {
		panic(err)
	}
	return raw
}

// modulo returns a sum as 128 bits.
func modulo(sum *big.Int) []byte {
	rest := new(big.Int).Mod(sum, new(big.Int).Lsh(big.NewInt(1), 128))
	return rest.FillBytes(make([]byte, 16))
}

func nameHash(name string) uint64 { return xxh3.HashString(name) }

func hash(b []byte, seed uint64) *big.Int {
	sum := xxh3.Hash128Seed(b, seed).Bytes()
	return new(big.Int).SetBytes(sum[:])
}
