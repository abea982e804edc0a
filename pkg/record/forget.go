package record

import (
	"bytes"
	"slices"

	"sluice/pkg/flow"
)

// Forgets selects the records of forgotten process instances, which every reader of the
// log skips. It decides by the record alone, so all readers agree. The zero value
// selects none.
type Forgets struct {
	sources map[string]forgotten
}

// forgotten is the forgotten instances of one source.
type forgotten struct {
	before map[string]int64 // by processInstanceKey: up to this timestamp, ms
	last   int64            // the latest of these
}

func NewForgets(orders []flow.Forget) Forgets {
	f := Forgets{map[string]forgotten{}}
	for _, order := range orders {
		for _, s := range order.Subjects {
			of, known := f.sources[s.Source]
			if !known {
				of.before = map[string]int64{}
			}
			for _, key := range s.Keys {
				of.before[key] = max(of.before[key], order.Before)
			}
			of.last = max(of.last, order.Before)
			f.sources[s.Source] = of
		}
	}
	return f
}

// Rows returns, in order, the rows to skip of those that a message appended from row
// from on: rows of a forgotten instance, and rows without instance that name one, such
// as batches of jobs.
func (f Forgets) Rows(m *flow.Message, c *Columns, from int) (rows []int) {
	of, some := f.sources[m.Source]
	if !some {
		return nil
	}
	var unsure map[int]int // index in the entry → row, of rows of no instance
	for row := from; row < c.Rows(); row++ {
		if c.TS[row] > of.last {
			continue
		}
		switch key := c.ProcessInstanceKey.Value(row); string(key) {
		case "", "-1", "0":
			if unsure == nil {
				unsure = map[int]int{}
			}
			unsure[int(c.StreamIdx[row])] = row
		default:
			if before, is := of.before[string(key)]; is && c.TS[row] <= before {
				rows = append(rows, row)
			}
		}
	}
	if unsure == nil {
		return rows
	}
	_ = Each(m, func(index int, raw []byte) error { // decoded above
		if row, is := unsure[index]; is && of.names(raw, c.TS[row]) {
			rows = append(rows, row)
		}
		return nil
	})
	slices.Sort(rows)
	return rows
}

// Names reports whether an undecodable record, or with index < 0 a whole message, names a
// forgotten instance. It has no timestamp, so the receive time of its request counts.
func (f Forgets) Names(m *flow.Message, index int, raw []byte) bool {
	of, some := f.sources[m.Source]
	at := m.Received.UnixMilli()
	if !some || at > of.last {
		return false
	}
	if index < 0 && m.Encoding != "" {
		if plain, ok := new(reader).decompress(raw); ok {
			raw = plain
		}
	}
	if index < 0 && m.Encoding == flow.EncodingColumns { // keys in columns have no delimiters
		for key, before := range of.before {
			if at <= before && bytes.Contains(raw, []byte(key)) {
				return true
			}
		}
	}
	return of.names(raw, at)
}

// Of returns the indexes in the entry of a message's records to skip; -1 for a whole
// corrupt message. It decodes the message if its source has forgotten anything.
func (f Forgets) Of(m *flow.Message) map[int]bool {
	if _, some := f.sources[m.Source]; !some {
		return nil
	}
	skipped := map[int]bool{}
	var c Columns
	bad, err := c.AppendGood(m)
	if err != nil {
		skipped[-1] = f.Names(m, -1, m.Body)
		return skipped
	}
	for _, one := range bad {
		skipped[one.Index] = f.Names(m, one.Index, one.Raw)
	}
	for _, row := range f.Rows(m, &c, 0) {
		skipped[int(c.StreamIdx[row])] = true
	}
	return skipped
}

// names reports whether a record of this time names one of the instances. A key must be a
// whole run of digits, outside the member sequence, whose range engines share with keys.
// Keys that are not numbers match as text.
func (of forgotten) names(raw []byte, at int64) bool {
	for i := 0; i < len(raw); {
		if raw[i] < '0' || raw[i] > '9' {
			i++
			continue
		}
		begin := i
		for i < len(raw) && raw[i] >= '0' && raw[i] <= '9' {
			i++
		}
		if before, is := of.before[string(raw[begin:i])]; is && at <= before && !bytes.HasSuffix(bytes.TrimRight(raw[:begin], " \t\r\n:"), []byte(`"sequence"`)) {
			return true
		}
	}
	for key, before := range of.before {
		if at <= before && !isNumber(key) && bytes.Contains(raw, []byte(key)) {
			return true
		}
	}
	return false
}

func isNumber(key string) bool {
	return key != "" && !slices.ContainsFunc([]byte(key), func(c byte) bool { return c < '0' || c > '9' })
}
