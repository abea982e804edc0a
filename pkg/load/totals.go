package load

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"sluice/pkg/load/simulator"
)

// Totals is what a number of records add up to. Every id is unique in its
// source, so Records is also the number of different ids of all sources.
type Totals struct {
	Records     int64
	Bytes       int64 // of JSON, brackets and commas between records left out
	KeySum      int64 // wraps, as sum(key) of ClickHouse does
	PositionSum int64 // wraps
	MinPosition int64 // 0 when there are no records
	MaxPosition int64
	types       [valueTypes]int64 // in the order of simulator.ValueTypes
}

const valueTypes = len(simulator.ValueTypes)

// typeOf is the index of each value type.
var typeOf = func() map[string]int {
	all := map[string]int{}
	for i, name := range simulator.ValueTypes {
		all[name] = i
	}
	return all
}()

// ValueTypes counts the records by valueType; those that did not occur are left
// out.
func (t Totals) ValueTypes() map[string]int64 {
	counts := make(map[string]int64)
	for i, n := range t.types {
		if n > 0 {
			counts[simulator.ValueTypes[i]] = n
		}
	}
	return counts
}

func (t *Totals) count(r simulator.Record) {
	if t.Records == 0 {
		t.MinPosition, t.MaxPosition = r.Position, r.Position
	}
	t.Records++
	t.Bytes += int64(len(r.JSON))
	t.KeySum += r.Key
	t.PositionSum += r.Position
	t.MinPosition = min(t.MinPosition, r.Position)
	t.MaxPosition = max(t.MaxPosition, r.Position)
	t.types[typeOf[r.ValueType]]++
}

func (t *Totals) add(o Totals) {
	if o.Records == 0 {
		return
	}
	if t.Records == 0 {
		*t = o
		return
	}
	t.Records += o.Records
	t.Bytes += o.Bytes
	t.KeySum += o.KeySum
	t.PositionSum += o.PositionSum
	t.MinPosition = min(t.MinPosition, o.MinPosition)
	t.MaxPosition = max(t.MaxPosition, o.MaxPosition)
	for i, n := range o.types {
		t.types[i] += n
	}
}

// Query is the SQL whose one row is Records, Records again, KeySum and
// PositionSum when exactly these records are stored.
func (t Totals) Query() string {
	return fmt.Sprintf("SELECT count(), uniqExact(source, id), sum(key), sum(position) FROM flow.records WHERE position BETWEEN %d AND %d", t.MinPosition, t.MaxPosition)
}

// Row is what Query gives in the format TabSeparated.
func (t Totals) Row() string {
	return strings.Join(strings.Fields(fmt.Sprint(t.Records, t.Records, t.KeySum, t.PositionSum)), "\t")
}

// MarshalJSON adds the counts by valueType.
func (t Totals) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Records     int64            `json:"records"`
		Bytes       int64            `json:"bytes"`
		KeySum      int64            `json:"key_sum"`
		PositionSum int64            `json:"position_sum"`
		MinPosition int64            `json:"min_position"`
		MaxPosition int64            `json:"max_position"`
		ValueTypes  map[string]int64 `json:"value_types"`
	}{t.Records, t.Bytes, t.KeySum, t.PositionSum, t.MinPosition, t.MaxPosition, t.ValueTypes()})
}

// Range is records of one partition that follow each other: the ids
// "<Partition>-<First>" to "<Partition>-<Last>".
type Range struct {
	Partition   int64
	First, Last int64 // positions; Last is below First when there are none
}

// Records is how many the range holds.
func (r Range) Records() int64 { return max(0, r.Last-r.First+1) }

func (r Range) String() string { return fmt.Sprintf("%d-%d..%d", r.Partition, r.First, r.Last) }

// extend adds a record to ranges that its partition may have begun already.
func extend(ranges []Range, r simulator.Record) []Range {
	for i := len(ranges) - 1; i >= 0; i-- {
		if ranges[i].Partition != r.Partition {
			continue
		}
		if ranges[i].Last == r.Position-1 {
			ranges[i].Last = r.Position
			return ranges
		}
		break
	}
	return append(ranges, Range{r.Partition, r.Position, r.Position})
}

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
			return Join(ranges), nil
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

// Join sorts ranges and makes those that adjoin or overlap one.
func Join(ranges []Range) []Range {
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
