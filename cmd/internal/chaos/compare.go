package main

import (
	"cmp"
	"fmt"
	"slices"

	"sluice/pkg/load"
)

// Stretch is records of one partition that follow each other and are stored the
// same number of times.
type Stretch struct {
	load.Range
	Times int64
}

// Findings is how what is stored differs from what was acknowledged.
type Findings struct {
	Acked     int64 // records acknowledged
	Stored    int64 // rows
	Unique    int64 // different records among them
	Lost      int64 // records acknowledged, not stored
	Doubled   int64 // rows beyond the first of their record
	Strangers int64 // rows of records that were never sent

	LostAt, DoubledAt, StrangersAt []load.Range

	Named []string // what is wrong, a line each
}

// add adds what was found of a source, and names it.
func (f *Findings) add(source string, o Findings) {
	f.Acked += o.Acked
	f.Stored += o.Stored
	f.Unique += o.Unique
	f.Lost += o.Lost
	f.Doubled += o.Doubled
	f.Strangers += o.Strangers
	for _, line := range o.names() {
		f.Named = append(f.Named, source+": "+line)
	}
}

// Compare finds what is missing, doubled or unknown. Each of the three lists
// holds no record twice; stored may be in any order.
func Compare(acked, sent []load.Range, stored []Stretch) Findings {
	f := Findings{Acked: records(acked)}
	var once []load.Range
	for _, r := range stored {
		f.Stored += r.Times * r.Records()
		f.Unique += r.Records()
		once = append(once, r.Range)
		if r.Times > 1 {
			f.Doubled += (r.Times - 1) * r.Records()
			f.DoubledAt = append(f.DoubledAt, r.Range)
		}
	}
	f.LostAt = without(acked, once)
	f.Lost = records(f.LostAt)
	f.StrangersAt = without(once, sent)
	f.Strangers = records(f.StrangersAt)
	return f
}

// Clean tells whether exactly what had to be stored is stored.
func (f Findings) Clean() bool { return f.Lost == 0 && f.Doubled == 0 && f.Strangers == 0 }

// names are lines about the first of what is wrong.
func (f Findings) names() []string {
	lines := firstOnes(f.Named)
	for _, list := range []struct {
		name   string
		ranges []load.Range
	}{{"lost", f.LostAt}, {"doubled", f.DoubledAt}, {"never sent", f.StrangersAt}} {
		var some []string
		for _, r := range list.ranges {
			some = append(some, fmt.Sprintf("%s: %s", list.name, r))
		}
		lines = append(lines, firstOnes(some)...)
	}
	return lines
}

func firstOnes(lines []string) []string {
	const most = 20
	if len(lines) <= most {
		return lines
	}
	return append(lines[:most:most], fmt.Sprintf("and %d more", len(lines)-most))
}

func records(ranges []load.Range) (n int64) {
	for _, r := range ranges {
		n += r.Records()
	}
	return n
}

// without returns the records of a that are not in b.
func without(a, b []load.Range) []load.Range {
	a, b = sorted(a), sorted(b)
	var rest []load.Range
	for _, r := range a {
		for len(b) > 0 && (b[0].Partition < r.Partition || b[0].Partition == r.Partition && b[0].Last < r.First) {
			b = b[1:]
		}
		for _, taken := range b {
			if taken.Partition != r.Partition || taken.First > r.Last {
				break
			}
			if taken.First > r.First {
				rest = append(rest, load.Range{Partition: r.Partition, First: r.First, Last: taken.First - 1})
			}
			r.First = max(r.First, taken.Last+1) // what is taken may overlap
		}
		if r.Records() > 0 {
			rest = append(rest, r)
		}
	}
	return rest
}

func sorted(ranges []load.Range) []load.Range {
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(a, b load.Range) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.First, b.First))
	})
	return ranges
}
