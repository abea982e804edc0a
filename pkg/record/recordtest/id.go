package recordtest

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"

	"github.com/zeebo/xxh3"
)

// contentID returns the id of a record that was sent without one.
func contentID(raw []byte) string {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return "h-" + hex.EncodeToString(digest(d, "id"))
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
