package dedup_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/zeebo/xxh3"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/ingest/dedup"
)

// TestEveryStoredRecordIsLookedUp compares with the truth in little memory: every stored record is
// looked up, whatever was evicted meanwhile.
func TestEveryStoredRecordIsLookedUp(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			limit := []int{1, 200 << 10, 1 << 20}[seed%3]
			k := dedup.NewStoredSet(limit)
			type place struct {
				source              string
				partition, day, pos int64
			}
			stored := map[place]bool{}
			next := map[string]int64{}
			asked, fresh := 0, 0
			for range 60 {
				k.Turn()
				source, partition, day := []string{"a", "b"}[r.IntN(2)], int64(r.IntN(3)), int64(20_000+r.IntN(3))
				if r.IntN(20) == 0 {
					k.Forget(source)
				}
				if !k.Has(source, partition, day) {
					floor := int64(math.MinInt64)
					for at := range stored {
						if at.source == source && at.partition == partition && at.day == day {
							floor = max(floor, at.pos)
						}
					}
					k.Learn(source, partition, day, floor)
				}
				span := fmt.Sprint(source, partition, day)
				for range 400 {
					pos := next[span] + 1 + r.Int64N(40)
					switch r.IntN(50) {
					case 0: // late, or resent
						pos = 1 + r.Int64N(max(next[span], 1))
					case 1:
						if seed%2 == 0 {
							pos = 1 + r.Int64N(math.MaxInt64-1) // implausible
						}
					case 2:
						if seed%4 == 0 {
							pos = math.MaxInt64
						}
					default:
						next[span] = pos
					}
					at := place{source, partition, day, pos}
					var ask bool
					if partition == 0 {
						h := xxh3.HashString128(fmt.Sprint(at))
						ask = k.Content(source, day, pos, h.Lo)
					} else {
						ask = k.Position(source, partition, day, pos)
					}
					fatal.When(t, stored[at] && !ask, "%+v is stored, and taken for new", at)
					if ask {
						asked++
					} else {
						fresh++
					}
					stored[at] = true
				}
			}
			expect.Not(t, fresh == 0, "all of %d were looked up", asked)
			if maximum := limit + 700<<10; k.Memory() > maximum { // a chunk and the first filters are always allocated
				t.Errorf("it takes %d bytes, want at most %d", k.Memory(), maximum)
			}
		})
	}
}

func TestNewPositionsAreNotAskedFor(t *testing.T) {
	k := dedup.NewStoredSet(1 << 20)
	const day = 20_000
	k.Turn()
	k.Learn("a", 1, day, 1000)
	expect.Not(t, k.Position("a", 1, day, math.MaxInt64), "an absurd new position is looked up")
	asked := 0
	for p := int64(1001); p < 20_000_000; p += 3 { // far more than the memory holds
		if p%2000 == 0 {
			k.Turn()
		}
		if k.Position("a", 1, day, p) {
			asked++
		}
		if late := p - 3000; late > 1001 && k.Position("a", 1, day, late-late%3) {
			asked++ // shuffled: 3000 positions late, each once
		}
	}
	expect.Not(t, asked > 0, "%d new positions were looked up after an absurd one", asked)
	for _, p := range []int64{1, 1000, math.MaxInt64, 19_999_997} {
		expect.Not(t, !k.Position("a", 1, day, p), "position %d is stored, and taken for new", p)
	}
	k.Learn("b", 1, day, 0)
	expect.Not(t, k.Position("b", 1, day, 5), "another source is spoiled")
	if k.Memory() > 2<<20 {
		t.Errorf("it takes %d bytes", k.Memory())
	}
}

// TestManySpansTakeLittle: a faulty client sends another partition in each record.
func TestManySpansTakeLittle(t *testing.T) {
	k := dedup.NewStoredSet(1 << 20)
	for partition := range int64(100_000) {
		if partition%1000 == 0 {
			k.Turn()
		}
		k.Learn("mad", 1+partition, 20_000, 0)
		k.Position("mad", 1+partition, 20_000, 7)
	}
	if k.Memory() > 2<<20 {
		t.Errorf("it takes %d bytes", k.Memory())
	}
}

func TestContentsInOrderAreNotAskedFor(t *testing.T) {
	k := dedup.NewStoredSet(4 << 20)
	const day = 20_000
	k.Learn("a", 0, day, 1000)
	asked := 0
	for n := range uint64(2_000_000) { // far more than the filter holds
		h := xxh3.Hash128([]byte(fmt.Sprint(n)))
		if ts := int64(1001 + n - n%64); k.Content("a", day, ts, h.Lo) {
			asked++
		}
	}
	expect.Not(t, asked > 2, "%d new contents were looked up", asked)
	for _, n := range []uint64{0, 70_000, 1_000_000, 1_999_999} {
		h := xxh3.Hash128([]byte(fmt.Sprint(n)))
		expect.Not(t, !k.Content("a", day, int64(1001+n-n%64), h.Lo), "content %d is stored, and taken for new", n)
	}
}
