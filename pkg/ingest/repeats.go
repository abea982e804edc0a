package ingest

import (
	"context"
	"encoding/binary"
	"fmt"

	"sluice/pkg/record"
)

// maxDays bounds how many days of sources are learned for one block. Records of
// more are asked for one by one: only a client that makes partitions up sends
// such a block.
const maxDays = 2000

// stretch is a run of rows of one day of one source and partition.
type stretch struct {
	from, to int
	kind     uint8
	day      record.SourceDay
	mark     *mark // nil when there are too many
}

// decide says which rows of the block are repeated: known already, by what is
// stored or by a row before them in the same block.
//
// All blocks before this one are stored, so the table and its marks tell the
// truth about them, and no other process changes the lane: if another has taken
// it, the claim that follows fails, and with it what was decided here.
func (s *session) decide(ctx context.Context, b *block) ([]record.Run, error) {
	for _, source := range b.fences {
		s.known.forget(source)
	}
	s.known.begin(s.knownBytes())
	all, err := s.stretches(ctx, &b.columns)
	if err != nil {
		return nil, err
	}
	ask := s.doubtful(&b.columns, all)
	if len(ask) == 0 {
		return nil, nil
	}
	same := newSame(&b.columns)
	s.metrics.lookups.Inc()
	s.metrics.lookedUp.Add(float64(len(ask)))
	if err := s.parts.Warehouse.Known(ctx, &b.columns, ask, same.stored); err != nil {
		return nil, fmt.Errorf("look for %d records that may be stored already: %w", len(ask), err)
	}
	return same.repeated(all, ask), nil
}

// stretches divides the rows, and learns the days that were not heard of.
func (s *session) stretches(ctx context.Context, c *record.Columns) ([]stretch, error) {
	all := s.days[:0]
	var unknown []record.SourceDay
	asked := map[record.SourceDay]bool{}
	var source, from, to = -1, int64(0), int64(0) // of the last stretch
	for row := range c.Rows() {
		kind := c.Kind[row]
		if kind == record.ByPlace {
			continue // never the same as another one
		}
		partition := int64(0)
		if kind == record.ByPosition {
			partition = c.PartitionID[row]
		}
		key, ts := c.Source.Key(row), c.TS[row]
		if n := len(all) - 1; n >= 0 && key == source && ts >= from && ts < to && all[n].day.Partition == partition && all[n].kind == kind && all[n].to == row {
			all[n].to = row + 1
			continue
		}
		day := record.SourceDay{Partition: partition, Day: record.Day(ts)}
		if n := len(all) - 1; n >= 0 && key == source {
			day.Source = all[n].day.Source
		} else {
			day.Source = string(c.Source.Value(row))
		}
		source, from = key, day.Day*dayMilliseconds
		to = from + dayMilliseconds
		mark := s.known.find(day)
		if mark == nil && !asked[day] && len(unknown) < maxDays {
			asked[day] = true
			unknown = append(unknown, day)
		}
		all = append(all, stretch{row, row + 1, kind, day, mark})
	}
	s.days = all
	if len(unknown) == 0 {
		return all, nil
	}
	marks, err := s.marks(ctx, s.done(), unknown)
	if err != nil {
		return nil, err
	}
	for _, day := range unknown {
		last, stored := marks.Last[day]
		if !stored {
			last = noFloor
		}
		s.known.learn(day, last)
	}
	for i := range all {
		if all[i].mark == nil {
			all[i].mark = s.known.find(all[i].day)
		}
	}
	return all, nil
}

const dayMilliseconds = 24 * 60 * 60 * 1000

// doubtful adds the rows to what is known, and returns those that may be stored
// already.
func (s *session) doubtful(c *record.Columns, all []stretch) []int {
	ask := s.ask[:0]
	for i := range all {
		d := &all[i]
		switch {
		case d.mark == nil:
			for row := d.from; row < d.to; row++ {
				ask = append(ask, row)
			}
		case d.kind == record.ByPosition:
			for row := d.from; row < d.to; row++ {
				if s.known.position(d.mark, c.Position[row]) {
					ask = append(ask, row)
				}
			}
		default:
			for row := d.from; row < d.to; row++ {
				identity := c.Identity.Value(row)
				if s.known.content(d.mark, c.TS[row], binary.LittleEndian.Uint64(identity), binary.LittleEndian.Uint64(identity[8:])) {
					ask = append(ask, row)
				}
			}
		}
	}
	s.ask = ask
	return ask
}

// same finds records that are the same, member by member.
type same struct {
	c     *record.Columns
	names map[string]uint32 // of sources, types and intents

	positions map[byPosition]withIDs
	ids       map[positionAndID]struct{}
	contents  map[byContent]struct{}
}

// byPosition is what two records that are known by their position agree in.
type byPosition struct {
	source, recordType, valueType, intent uint32
	partition, position, ts, key          int64
}

// withIDs says which ids the records of a byPosition have. One without an id
// of its own is the same as any of them.
type withIDs struct{ any, none bool }

type positionAndID struct {
	byPosition
	id string
}

// byContent is what two records that are known by their content agree in: the
// hash is of all they say, the id included.
type byContent struct {
	source uint32
	hash   [16]byte
}

func newSame(c *record.Columns) *same {
	return &same{
		c: c, names: map[string]uint32{},
		positions: map[byPosition]withIDs{}, ids: map[positionAndID]struct{}{}, contents: map[byContent]struct{}{},
	}
}

// stored adds a row of the table.
func (s *same) stored(k *record.Known) {
	if k.Identity != "" {
		if len(k.Identity) == len(byContent{}.hash) {
			s.contents[byContent{s.name(k.Source), [16]byte([]byte(k.Identity))}] = struct{}{}
		}
		return
	}
	s.addPosition(byPosition{
		s.name(k.Source), s.name(k.RecordType), s.name(k.ValueType), s.name(k.Intent),
		k.PartitionID, k.Position, k.TS, k.Key,
	}, k.OwnID)
}

func (s *same) name(text string) uint32 {
	n, ok := s.names[text]
	if !ok {
		n = uint32(len(s.names))
		s.names[text] = n
	}
	return n
}

// symbol is name of the value of a row.
func (s *same) symbol(column *record.Symbol, row int) uint32 {
	value := column.Value(row)
	if n, ok := s.names[string(value)]; ok {
		return n
	}
	return s.name(string(value))
}

func (s *same) addPosition(k byPosition, id string) {
	ids := s.positions[k]
	ids.any = true
	if id == "" {
		ids.none = true
	} else {
		s.ids[positionAndID{k, id}] = struct{}{}
	}
	s.positions[k] = ids
}

// add adds a row of the block, and says whether the same was there.
func (s *same) add(row int) (there bool) {
	c := s.c
	if c.Kind[row] == record.ByContent {
		k := byContent{s.symbol(&c.Source, row), [16]byte(c.Identity.Value(row))}
		_, there = s.contents[k]
		s.contents[k] = struct{}{}
		return there
	}
	k := byPosition{
		s.symbol(&c.Source, row), s.symbol(&c.RecordType, row), s.symbol(&c.ValueType, row), s.symbol(&c.Intent, row),
		c.PartitionID[row], c.Position[row], c.TS[row], c.Key[row],
	}
	id := string(c.OwnID.Value(row))
	if ids := s.positions[k]; ids.any {
		_, there = s.ids[positionAndID{k, id}]
		if there = there || id == "" || ids.none; there {
			return true
		}
	}
	s.addPosition(k, id)
	return false
}

// repeated returns the rows of ask that are the same as a stored row, or as a
// row before them that is not dropped.
func (s *same) repeated(all []stretch, ask []int) (runs []record.Run) {
	// A row that is not asked for is new. It matters only when one that is
	// asked for comes after it with the same position or content.
	type place struct {
		source    int
		partition int64
		position  int64
	}
	places, contents := map[place]bool{}, map[[16]byte]bool{}
	c := s.c
	for _, row := range ask {
		if c.Kind[row] == record.ByContent {
			contents[[16]byte(c.Identity.Value(row))] = true
		} else {
			places[place{c.Source.Key(row), c.PartitionID[row], c.Position[row]}] = true
		}
	}
	for _, d := range all {
		for row := d.from; row < d.to; row++ {
			asked := len(ask) > 0 && ask[0] == row
			if asked {
				ask = ask[1:]
			} else if d.kind == record.ByContent {
				if !contents[[16]byte(c.Identity.Value(row))] {
					continue
				}
			} else if !places[place{c.Source.Key(row), c.PartitionID[row], c.Position[row]}] {
				continue
			}
			if s.add(row) && asked {
				runs = addRow(runs, row)
			}
		}
		if len(ask) == 0 {
			break // what comes after the last question does not matter
		}
	}
	return runs
}

// addRow adds a row, which is behind all others, to runs.
func addRow(runs []record.Run, row int) []record.Run {
	if n := len(runs) - 1; n >= 0 && runs[n].To == row {
		runs[n].To++
		return runs
	}
	return append(runs, record.Run{From: row, To: row + 1})
}
