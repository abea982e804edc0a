package ingest

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"sluice/pkg/record"
)

// maxDays bounds how many days of sources are learned for one block. Records of
// more are asked for one by one: only a client that makes partitions up sends
// such a block.
const maxDays = 2000

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
	if err := s.meet(ctx, &b.columns); err != nil {
		return nil, err
	}
	ask := s.doubtful(&b.columns)
	if len(ask) == 0 {
		return nil, nil
	}
	same := newSame(&b.columns)
	s.metrics.lookups.Inc()
	s.metrics.lookedUp.Add(float64(len(ask)))
	if err := s.parts.Warehouse.Known(ctx, &b.columns, ask, same.stored); err != nil {
		return nil, fmt.Errorf("look for %d records that may be stored already: %w", len(ask), err)
	}
	return same.repeated(ask), nil
}

// recent is how many days a block looks for before it looks into the map of all.
// Records of a few partitions follow each other in any order.
const recent = 16

// recentDay is a day of a source and partition that was met lately.
type recentDay struct {
	source    int // its key in the block
	partition int64
	from, to  int64 // of the timestamps of the day
	mark      *mark // nil when it is not known yet
}

// meet finds the day of every row, and learns those that were not heard of.
func (s *session) meet(ctx context.Context, c *record.Columns) error {
	marks := slices.Grow(s.days[:0], c.Rows())[:c.Rows()]
	s.days = marks
	unknown, late := s.findDays(c, marks)
	s.late = late
	if len(unknown) == 0 {
		return nil
	}
	answer, err := s.marks(ctx, s.done(), unknown)
	if err != nil {
		return err
	}
	for _, day := range unknown {
		last, stored := answer.Last[day]
		if !stored {
			last = noFloor
		}
		s.known.learn(day, last)
	}
	for _, row := range late {
		marks[row] = s.known.find(dayOf(c, row))
	}
	return nil
}

// findDays fills in what is known of the day of each row. It returns the days
// that were not heard of, and their rows. Records without a day, which are never
// the same as another one, are left out.
func (s *session) findDays(c *record.Columns, marks []*mark) (unknown []record.SourceDay, late []int) {
	late = s.late[:0]
	var cache [recent]recentDay
	for i := range cache {
		cache[i].source = -1
	}
	var asked map[record.SourceDay]bool
	for row := range marks {
		marks[row] = nil
		kind := c.Kind[row]
		if kind == record.ByPlace {
			continue
		}
		partition := int64(0)
		if kind == record.ByPosition {
			partition = c.PartitionID[row]
		}
		source, ts := c.Source.Key(row), c.TS[row]
		at := &cache[partition%recent]
		if at.source != source || at.partition != partition || ts < at.from || ts >= at.to {
			day := dayOf(c, row)
			*at = recentDay{source, partition, day.Day * dayMilliseconds, (day.Day + 1) * dayMilliseconds, s.known.find(day)}
			if at.mark == nil && !asked[day] && len(unknown) < maxDays {
				if asked == nil {
					asked = map[record.SourceDay]bool{}
				}
				asked[day] = true
				unknown = append(unknown, day)
			}
		}
		if marks[row] = at.mark; at.mark == nil {
			late = append(late, row)
		}
	}
	return unknown, late
}

const dayMilliseconds = 24 * 60 * 60 * 1000

// dayOf is the day that a row belongs to.
func dayOf(c *record.Columns, row int) record.SourceDay {
	day := record.SourceDay{Source: string(c.Source.Value(row)), Day: record.Day(c.TS[row])}
	if c.Kind[row] == record.ByPosition {
		day.Partition = c.PartitionID[row]
	}
	return day
}

// doubtful adds the rows to what is known, and returns those that may be stored
// already.
func (s *session) doubtful(c *record.Columns) []int {
	ask := s.ask[:0]
	for row, mark := range s.days {
		switch kind := c.Kind[row]; {
		case kind == record.ByPlace:
		case mark == nil: // there are too many days
			ask = append(ask, row)
		case kind == record.ByPosition:
			if s.known.position(mark, c.Position[row]) {
				ask = append(ask, row)
			}
		default:
			if s.known.content(mark, c.TS[row], binary.LittleEndian.Uint64(c.Identity.Value(row))) {
				ask = append(ask, row)
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

// byContent is what two records that are known by their content agree in. The
// hash is of all they say, but among the records of a large source two may have
// the same one: what has a column of its own is compared as it is.
type byContent struct {
	byPosition
	id   string // empty where it follows from partition and position
	hash contentHash
}

type contentHash [record.ContentBytes]byte

func newSame(c *record.Columns) *same {
	return &same{
		c: c, names: map[string]uint32{},
		positions: map[byPosition]withIDs{}, ids: map[positionAndID]struct{}{}, contents: map[byContent]struct{}{},
	}
}

// stored adds a row of the table.
func (s *same) stored(k *record.Known) {
	about := byPosition{
		s.name(k.Source), s.name(k.RecordType), s.name(k.ValueType), s.name(k.Intent),
		k.PartitionID, k.Position, k.TS, k.Key,
	}
	switch len(k.Identity) {
	case 0:
		s.addPosition(about, k.OwnID)
	case record.ContentBytes:
		s.contents[byContent{about, k.OwnID, contentHash([]byte(k.Identity))}] = struct{}{}
	}
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
	k := byPosition{
		s.symbol(&c.Source, row), s.symbol(&c.RecordType, row), s.symbol(&c.ValueType, row), s.symbol(&c.Intent, row),
		c.PartitionID[row], c.Position[row], c.TS[row], c.Key[row],
	}
	id := string(c.OwnID.Value(row))
	if c.Kind[row] == record.ByContent {
		content := byContent{k, id, contentHash(c.Identity.Value(row))}
		_, there = s.contents[content]
		if !there && id != "" { // of one that was forgotten no id is kept
			_, there = s.contents[byContent{k, "", content.hash}]
		}
		s.contents[content] = struct{}{}
		return there
	}
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
func (s *same) repeated(ask []int) (runs []record.Run) {
	// A row that is not asked for is new. It matters only when one that is
	// asked for comes after it with the same position or content.
	type place struct {
		source    int
		partition int64
		position  int64
	}
	places, contents := map[place]bool{}, map[contentHash]bool{}
	c := s.c
	for _, row := range ask {
		if c.Kind[row] == record.ByContent {
			contents[contentHash(c.Identity.Value(row))] = true
		} else {
			places[place{c.Source.Key(row), c.PartitionID[row], c.Position[row]}] = true
		}
	}
	for row := 0; len(ask) > 0; row++ { // what comes after the last question does not matter
		asked := ask[0] == row
		switch {
		case asked:
			ask = ask[1:]
		case c.Kind[row] == record.ByPlace:
			continue
		case c.Kind[row] == record.ByContent:
			if !contents[contentHash(c.Identity.Value(row))] {
				continue
			}
		case !places[place{c.Source.Key(row), c.PartitionID[row], c.Position[row]}]:
			continue
		}
		if s.add(row) && asked {
			runs = addRow(runs, row)
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
