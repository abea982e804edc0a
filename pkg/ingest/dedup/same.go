package dedup

import (
	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// Same finds equal records, member by member: within a block, and for verify and rebuild, which look at the tables afterwards.
type Same struct {
	c     *record.Columns
	names map[string]uint32 // of sources, types and intents

	positions map[byPosition]withIDs
	ids       map[positionAndID]struct{}
	contents  map[byContent]struct{}
	places    map[byPlace]struct{}
}

// byPlace identifies records by place.
type byPlace struct{ source, place string }

// byPosition identifies records by position.
type byPosition struct {
	source, recordType, valueType, intent uint32
	partition, position, ts, key          int64
}

// withIDs is the ids of the records of a byPosition. A record without an id of its own equals any of them.
type withIDs struct{ any, none bool }

type positionAndID struct {
	byPosition
	id string
}

// byContent identifies records by content. Hashes of a large source may collide, so members with columns are compared too.
type byContent struct {
	byPosition
	id   string // empty if derived from partition and position
	hash contentHash
}

type contentHash [flow.ContentBytes]byte

// NewSame returns a Same for rows of c.
func NewSame(c *record.Columns) *Same {
	return &Same{
		c: c, names: map[string]uint32{},
		positions: map[byPosition]withIDs{}, ids: map[positionAndID]struct{}{}, contents: map[byContent]struct{}{}, places: map[byPlace]struct{}{},
	}
}

// Stored adds a row of the table.
func (s *Same) Stored(k *flow.Identity) {
	about := byPosition{
		s.name(k.Source), s.name(k.RecordType), s.name(k.ValueType), s.name(k.Intent),
		k.PartitionID, k.Position, k.TS, k.Key,
	}
	switch len(k.Content) {
	case 0:
		s.addPosition(about, k.OwnID)
	case flow.ContentBytes:
		s.contents[byContent{about, k.OwnID, contentHash([]byte(k.Content))}] = struct{}{}
	default: // a place, which is longer
		s.places[byPlace{k.Source, k.Content}] = struct{}{}
	}
}

func (s *Same) name(text string) uint32 {
	n, ok := s.names[text]
	if !ok {
		n = uint32(len(s.names))
		s.names[text] = n
	}
	return n
}

// symbol is the number of a row's value.
func (s *Same) symbol(column *record.LowCardinality, row int) uint32 {
	value := column.Value(row)
	if n, ok := s.names[string(value)]; ok {
		return n
	}
	return s.name(string(value))
}

func (s *Same) addPosition(k byPosition, id string) {
	ids := s.positions[k]
	ids.any = true
	if id == "" {
		ids.none = true
	} else {
		s.ids[positionAndID{k, id}] = struct{}{}
	}
	s.positions[k] = ids
}

// Add adds a row of c, and reports whether an equal record was there.
func (s *Same) Add(row int) (there bool) {
	c := s.c
	if c.Kind[row] == flow.ByPlace {
		k := byPlace{string(c.Source.Value(row)), string(c.Identity.Value(row))}
		_, there = s.places[k]
		s.places[k] = struct{}{}
		return there
	}
	k := byPosition{
		s.symbol(&c.Source, row), s.symbol(&c.RecordType, row), s.symbol(&c.ValueType, row), s.symbol(&c.Intent, row),
		c.PartitionID[row], c.Position[row], c.TS[row], c.Key[row],
	}
	id := string(c.OwnID.Value(row))
	if c.Kind[row] == flow.ByContent {
		content := byContent{k, id, contentHash(c.Identity.Value(row))}
		_, there = s.contents[content]
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

// repeated returns the rows of ask that equal a stored row, or an earlier row that is not dropped.
func (s *Same) repeated(ask []int) (runs []flow.Run) {
	// Rows outside ask are new. They matter only if a later row of ask has the same position or
	// content.
	type place struct {
		source    int
		partition int64
		position  int64
	}
	places, contents := map[place]bool{}, map[contentHash]bool{}
	c := s.c
	for _, row := range ask {
		switch c.Kind[row] {
		case flow.ByPlace:
		case flow.ByContent:
			contents[contentHash(c.Identity.Value(row))] = true
		default:
			places[place{c.Source.Key(row), c.PartitionID[row], c.Position[row]}] = true
		}
	}
	for row := 0; len(ask) > 0; row++ { // rows after the last of ask do not matter
		asked := ask[0] == row
		switch {
		case asked:
			ask = ask[1:]
		case c.Kind[row] == flow.ByPlace:
			continue // at its own, unique place
		case c.Kind[row] == flow.ByContent:
			if !contents[contentHash(c.Identity.Value(row))] {
				continue
			}
		case !places[place{c.Source.Key(row), c.PartitionID[row], c.Position[row]}]:
			continue
		}
		if s.Add(row) && asked {
			runs = flow.AddRow(runs, row)
		}
	}
	return runs
}
