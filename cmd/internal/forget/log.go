package forget

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/klauspost/compress/s2"

	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// lane is one lane. Everything up to done is stored or set aside.
type lane struct {
	number      int
	incarnation uint64
	done        uint64
}

// redact takes what is forgotten out of the messages that a lane still holds. It
// looks first, for records and for their repeats, which have no row, and asks the
// tables about what it finds beyond what is noted: so that a record is gone from
// the lane exactly when it is gone from the tables.
func (f *forgetting) redact(ctx context.Context, l lane) error {
	noted, err := f.db.Noted(ctx, f.receipt.ID, l.number, l.incarnation, 0)
	if err != nil {
		return err
	}
	hits := map[uint64][]int{} // indexes by message; -1 and below for a message of it that cannot be read
	var unsure []warehouse.Place
	look := func(e *flow.Entry) error {
		indexes, err := f.search(e, noted)
		if err != nil || len(indexes) == 0 {
			return err
		}
		hits[e.Seq] = indexes
		for _, index := range indexes {
			if place := (warehouse.Place{Seq: e.Seq, Idx: uint32(index)}); index >= 0 && !noted[place] {
				unsure = append(unsure, place)
			}
		}
		return nil
	}
	if err := f.stream.RedactedBefore(ctx, l.number, look); err != nil {
		return err
	}
	if err := f.read(ctx, l, look); err != nil {
		return err
	}
	more, err := f.db.NotePlaces(ctx, f.receipt.ID, l.number, l.incarnation, unsure)
	if err != nil {
		return err
	}
	maps.Copy(noted, more)
	// Noted. A crash from here on leaves messages that are redacted, and rows that
	// are still there.
	for _, seq := range slices.Sorted(maps.Keys(hits)) {
		e, ok, err := f.stream.Entry(ctx, l.number, seq)
		if err != nil {
			return err
		}
		if !ok {
			continue // purged meanwhile
		}
		r := stream.Redaction{Receipt: f.receipt.ID, Records: len(hits[seq])}
		for _, index := range hits[seq] {
			switch {
			case index < 0:
			case noted[warehouse.Place{Seq: seq, Idx: uint32(index)}]:
				r.Forgotten.Stored = append(r.Forgotten.Stored, index)
			default:
				r.Forgotten.Repeated = append(r.Forgotten.Repeated, index)
			}
		}
		r.Forget = func(m *flow.Message, index int) bool {
			if index < 0 {
				index = -1 - m.Ordinal
			}
			return slices.Contains(hits[seq], index)
		}
		if err := f.stream.Redact(ctx, &e, r); err != nil {
			return err
		}
	}
	return nil
}

// read reads what a lane holds up to where it is stored. What is purged meanwhile
// is gone.
func (f *forgetting) read(ctx context.Context, l lane, look func(*flow.Entry) error) error {
	for next := uint64(1); next <= l.done; {
		if err := f.stream.Refresh(ctx); err != nil {
			return err
		}
		for _, info := range f.stream.Lanes() {
			if info.Number == l.number {
				next = max(next, info.First)
			}
		}
		reached, err := f.readFrom(ctx, l, next, look)
		if err != nil && !(errors.Is(err, flow.ErrGap) && reached > next) {
			return err
		}
		next = reached
	}
	return nil
}

func (f *forgetting) readFrom(ctx context.Context, l lane, next uint64, look func(*flow.Entry) error) (uint64, error) {
	if next > l.done {
		return next, nil
	}
	reader, err := f.stream.OpenLane(ctx, l.number, next, 0)
	if err != nil {
		return next, err
	}
	defer reader.Close()
	for ; next <= l.done; next++ {
		e, err := reader.Next(ctx)
		if err == nil {
			err = look(&e)
		}
		if err != nil {
			return next, err
		}
		f.cfg.Progress(next, l.done)
	}
	return next, nil
}

// search returns the indexes of the records of an entry that are to be forgotten.
func (f *forgetting) search(e *flow.Entry, noted map[warehouse.Place]bool) (hits []int, err error) {
	if e.Topic != stream.RecordTopic(e.Lane) {
		return nil, nil
	}
	for i := range e.Messages {
		m := &e.Messages[i]
		if len(f.names[m.Source]) == 0 {
			continue
		}
		body := m.Body
		if m.Encoding == flow.EncodingS2 {
			if body, err = s2.Decode(nil, m.Body); err != nil {
				continue // it cannot be decoded
			}
		}
		if f.names.mayNameIn(m.Source, body) {
			hits = append(hits, f.searchMessage(e, m, body)...)
		}
	}
	for index := range e.Records() {
		if noted[warehouse.Place{Seq: e.Seq, Idx: uint32(index)}] && !slices.Contains(hits, index) && !e.Forgotten.Has(index) {
			hits = append(hits, index)
		}
	}
	slices.Sort(hits)
	return hits, nil
}

// searchMessage does the same for one message. A record goes when it is of one of
// the instances, or of none and names one; one that cannot be stored, when it names
// one; and a message that cannot be read as a whole too.
func (f *forgetting) searchMessage(e *flow.Entry, m *flow.Message, body []byte) (hits []int) {
	c := &f.columns
	c.Reset()
	bad, err := c.AppendGood(m)
	if err != nil || e.Err != nil {
		if f.names.in(m.Source, body) {
			hits = append(hits, -1-m.Ordinal)
		}
		return hits
	}
	for _, b := range bad {
		if f.names.in(m.Source, b.Raw) {
			hits = append(hits, b.Index)
		}
	}
	var ofNone []int // of no instance
	for row := range c.Rows() {
		switch key := string(c.ProcessInstanceKey.Value(row)); key {
		case "", "-1", "0":
			ofNone = append(ofNone, int(c.StreamIdx[row]))
		default:
			if f.names[m.Source][key] {
				hits = append(hits, int(c.StreamIdx[row]))
			}
		}
	}
	if len(ofNone) > 0 {
		_ = record.Each(m, func(index int, raw []byte) error { // it was read just now
			if slices.Contains(ofNone, index) && f.names.in(m.Source, raw) {
				hits = append(hits, index)
			}
			return nil
		})
	}
	return hits
}

// letters calls do with every dead letter that names one of the instances.
func (f *forgetting) letters(ctx context.Context, do func(stream.DeadLetter) error) (n int, err error) {
	all := stream.NewDeadLetters(f.stream)
	for d, err := range all.List(ctx, stream.DeadFilter{}) {
		if err != nil {
			return n, err
		}
		body := d.Message.Body
		if d.Message.Encoding == flow.EncodingS2 && d.Index < 0 {
			if plain, err := s2.Decode(nil, body); err == nil {
				body = plain
			}
		}
		if !f.names.in(d.Message.Source, body) {
			continue
		}
		n++
		if err := do(d); err != nil {
			return n, fmt.Errorf("dead letter %d: %w", d.Number, err)
		}
	}
	return n, nil
}
