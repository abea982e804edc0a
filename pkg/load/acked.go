package load

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Range is records of one partition that follow each other: the ids
// "<Partition>-<First>" to "<Partition>-<Last>".
type Range struct {
	Partition   int64
	First, Last int64 // positions; Last is below First when there are none
}

// Records is how many the range holds.
func (r Range) Records() int64 { return max(0, r.Last-r.First+1) }

func (r Range) String() string { return fmt.Sprintf("%d-%d..%d", r.Partition, r.First, r.Last) }

// appendRanges writes the ranges of one acknowledged request as one line.
func appendRanges(dst []byte, ranges []Range) []byte {
	sep := ""
	for _, r := range ranges {
		if r.Records() > 0 {
			dst = fmt.Appendf(dst, "%s%s", sep, r)
			sep = " "
		}
	}
	return append(dst, '\n')
}

// ReadAcked reads what Config.Acked was given: one line per acknowledged
// request. It returns the ranges in order, those that adjoin as one. A last
// line without its end, which a killed run can leave, does not count.
func ReadAcked(r io.Reader) ([]Range, error) {
	var ranges []Range
	in := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := in.ReadString('\n')
		if err == io.EOF {
			return join(ranges), nil
		}
		if err != nil {
			return nil, fmt.Errorf("read acknowledged ranges: %w", err)
		}
		for _, field := range strings.Fields(line) {
			var a Range
			if _, err := fmt.Sscanf(field, "%d-%d..%d", &a.Partition, &a.First, &a.Last); err != nil || a.String() != field || a.First < 0 || a.Last < a.First {
				return nil, fmt.Errorf("line %d: %q is not a range such as 1-7554..7601", n, field)
			}
			ranges = append(ranges, a)
		}
	}
}

// join sorts ranges and makes those that adjoin or overlap one.
func join(ranges []Range) []Range {
	slices.SortFunc(ranges, func(a, b Range) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.First, b.First))
	})
	var joined []Range
	for _, r := range ranges {
		if n := len(joined); n > 0 && joined[n-1].Partition == r.Partition && r.First-1 <= joined[n-1].Last {
			joined[n-1].Last = max(joined[n-1].Last, r.Last)
			continue
		}
		joined = append(joined, r)
	}
	return joined
}
