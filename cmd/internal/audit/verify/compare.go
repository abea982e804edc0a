package verify

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"sluice/pkg/flow"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// rowsAtOnce bounds the rows of adjacent runs that are inspected together.
const rowsAtOnce = 200_000

// compare compares the sums of the segment, up to a message, with those of the table, and
// inspects the runs that differ.
func (l *lane) compare(ctx context.Context, last uint64) error {
	if last < l.segment {
		return nil
	}
	have, err := l.db.Sums(ctx, l.Lane.Lane, l.position.Incarnation(), l.segment, last, runWidth, l.digest)
	if err != nil {
		return err
	}
	runs := (last-l.segment)/runWidth + 1
	for run := uint64(0); run < runs; run++ {
		end, rows := run, uint64(0)
		for ; end < runs && have[end] != l.want[end] && rows < rowsAtOnce; end++ {
			rows += max(have[end].Rows, l.want[end].Rows)
		}
		if end == run {
			continue
		}
		if err := l.inspect(ctx, l.segment+run*runWidth, min(l.segment+end*runWidth-1, last)); err != nil {
			return err
		}
		run = end - 1
	}
	return nil
}

// inspect compares messages with rows one by one.
func (l *lane) inspect(ctx context.Context, first, last uint64) error {
	reader, err := l.stream.OpenLane(ctx, l.Lane.Lane, first, 0)
	if err != nil {
		return l.orPurged(ctx, first, err)
	}
	defer reader.Close()
	next, stop := iter.Pull2(l.db.Rows(ctx, l.Lane.Lane, l.position.Incarnation(), first, last, l.digest))
	defer stop()
	rows := &rows{next: next}
	if err := rows.advance(); err != nil {
		return err
	}
	for seq := first; seq <= last; seq++ {
		e, err := reader.Next(ctx)
		if err != nil {
			return l.orPurged(ctx, seq, err)
		}
		if err := l.inspectEntry(&e, rows); err != nil {
			return err
		}
		if l.rowless.columns.Rows() >= searchAtOnce {
			if err := l.search(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// inspectEntry compares one entry with its rows.
func (l *lane) inspectEntry(e *flow.Entry, rows *rows) error {
	due := map[uint32]due{}
	l.columns.Reset()
	if e.Topic == stream.RecordTopic(e.Lane) {
		for i := range e.Messages {
			m := &e.Messages[i]
			if l.void[request{m.Seq, m.Ordinal}] {
				continue
			}
			l.decode(e, m, func(row int) { due[l.columns.StreamIdx[row]] = dueRow(m, row) }, func(int, int, string) {})
		}
	}
	found := map[uint32]bool{}
	for !rows.over && rows.row.Seq == e.Seq {
		place, err := rows.place()
		if err != nil {
			return err
		}
		idx := place[0].Idx
		if d, expected := due[idx]; expected {
			found[idx] = l.inspectPlace(d.message, place, d.row)
		} else {
			l.unexpected(e, place)
		}
	}
	for i := range e.Messages {
		m := &e.Messages[i]
		if err := l.rowless.add(m, func(index int) bool {
			d, expected := due[uint32(index)]
			return expected && d.message == m && !found[uint32(index)]
		}); err != nil {
			return err
		}
	}
	return nil
}

// due is a record that must have a row.
type due struct {
	message *flow.Message
	row     int // of the columns
}

func dueRow(m *flow.Message, row int) due { return due{m, row} }

// inspectPlace checks the rows of one place, which should be one, and reports whether the
// record has a row.
func (l *lane) inspectPlace(m *flow.Message, place []warehouse.Row, row int) bool {
	want := l.digest.Row(&l.columns, row)
	equal := slices.ContainsFunc(place, func(r warehouse.Row) bool { return r.Digest == want })
	t := l.minutes.at(m.Received)
	one := false
	for _, r := range place {
		f := Finding{Kind: Doubled, Lane: m.Lane, Sequence: r.Seq, Index: int(r.Idx), ID: r.ID, Received: m.Received, Detail: "more than one row"}
		switch {
		case !one && (r.Digest == want || !equal):
			one = true
			if r.Digest == want {
				continue
			}
			t.Changed++
			f.Kind, f.Detail = Changed, fmt.Sprintf("the row differs from the accepted record %q", l.columns.ID(row))
		default:
			t.Doubled++
		}
		l.find(f)
	}
	return one
}

// unexpected reports rows at a place that should have none.
func (l *lane) unexpected(e *flow.Entry, place []warehouse.Row) {
	for _, r := range place {
		m := &e.Messages[0]
		for i := range e.Messages {
			if e.Messages[i].Index <= int(r.Idx) {
				m = &e.Messages[i]
			}
		}
		f := Finding{Kind: Unknown, Lane: m.Lane, Sequence: r.Seq, Index: int(r.Idx), ID: r.ID, Received: m.Received, Detail: "the message has no such record"}
		outcome := cmp.Or(l.outcomes[origin{l.position.Incarnation(), m.Lane, r.Seq, int(r.Idx)}], l.outcomes[origin{l.position.Incarnation(), m.Lane, r.Seq, -1 - m.Ordinal}])
		if outcome != "" {
			f.Kind, f.Detail = Doubled, "both stored and dead-lettered (now "+outcome+")"
		}
		l.minutes.at(m.Received).Doubled++
		l.find(f)
	}
}

// rows is a cursor over rows in order of place.
type rows struct {
	next func() (warehouse.Row, error, bool)
	row  warehouse.Row
	over bool
}

// place returns the next row and all others at its place.
func (r *rows) place() ([]warehouse.Row, error) {
	place := []warehouse.Row{r.row}
	for {
		if err := r.advance(); err != nil || r.over || r.row.Seq != place[0].Seq || r.row.Idx != place[0].Idx {
			return place, err
		}
		place = append(place, r.row)
	}
}

func (r *rows) advance() error {
	row, err, ok := r.next()
	r.row, r.over = row, !ok
	return err
}
