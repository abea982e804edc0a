package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"sluice/pkg/record"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// rowsAtOnce bounds the rows of neighbouring runs that are read again together.
const rowsAtOnce = 200_000

// compare compares the sums of the segment, up to a message, with those of the
// table, and names what makes them differ.
func (l *lane) compare(ctx context.Context, last uint64) error {
	if last < l.segment {
		return nil
	}
	have, err := l.db.Sums(ctx, l.Lane.Lane, l.segment, last, runWidth, l.digest)
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
	cursor, err := stream.NewReader(l.stream, 0).Open(ctx, l.Lane.Lane, first)
	if errors.Is(err, record.ErrGap) {
		return l.purged(first, last)
	}
	if err != nil {
		return err
	}
	defer cursor.Close()
	next, stop := iter.Pull2(l.db.Rows(ctx, l.Lane.Lane, first, last, l.digest))
	defer stop()
	rows := &rows{next: next}
	if err := rows.advance(); err != nil {
		return err
	}
	for seq := first; seq <= last; seq++ {
		m, err := cursor.Next(ctx)
		if errors.Is(err, record.ErrGap) {
			return l.purged(seq, last)
		}
		if err != nil {
			return err
		}
		if err := l.inspectMessage(&m, rows); err != nil {
			return err
		}
		if len(l.missing) >= searchAtOnce {
			if err := l.search(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// purged: the difference can be seen and not be named any more.
func (l *lane) purged(first, last uint64) error {
	l.problem("messages %d to %d of lane %d differ from the table, and were purged before they could be looked at: run it again", first, last, l.Lane.Lane)
	return nil
}

// inspectMessage takes the rows of one message from those that come.
func (l *lane) inspectMessage(m *record.Message, rows *rows) error {
	t := l.minutes.at(m.Received)
	due := map[uint32]int{}
	if m.Topic == stream.RecordTopic(m.Lane) {
		l.decode(m, func(row int) { due[l.columns.StreamIdx[row]] = row }, func(int, int, string) {})
	}
	seen := map[uint32]bool{}
	for !rows.over && rows.row.Seq == m.Seq {
		r := rows.row
		f := Finding{Lane: m.Lane, Sequence: r.Seq, Index: int(r.Idx), ID: r.ID, Received: m.Received}
		row, expected := due[r.Idx]
		switch {
		case !expected:
			l.unexpected(t, f)
		case seen[r.Idx]:
			t.Doubled++
			f.Kind, f.Detail = Doubled, "more rows than one"
			l.find(f)
		case r.Digest != l.digest.Row(&l.columns, row):
			t.Changed++
			f.Kind, f.Detail = Changed, fmt.Sprintf("the row differs from the record %q that was accepted", l.columns.ID.Value(row))
			l.find(f)
		}
		seen[r.Idx] = true
		if err := rows.advance(); err != nil {
			return err
		}
	}
	for i := range l.columns.Rows() {
		idx := l.columns.StreamIdx[i]
		if row, expected := due[idx]; expected && !seen[idx] {
			l.missing = append(l.missing, absent{
				Finding: Finding{Kind: Missing, Lane: m.Lane, Sequence: m.Seq, Index: int(idx), ID: string(l.columns.ID.Value(row)), Received: m.Received},
				key:     l.digest.Key(&l.columns, row),
				day:     time.UnixMilli(l.columns.TS[row]).UTC().Format(time.DateOnly),
			})
		}
	}
	return nil
}

// unexpected is a row where there should be none.
func (l *lane) unexpected(t *Tally, f Finding) {
	t.Doubled++
	fate := cmp.Or(l.fates[origin{f.Lane, f.Sequence, f.Index}], l.fates[origin{f.Lane, f.Sequence, -1}])
	f.Kind, f.Detail = Doubled, "stored, and set aside too (now "+fate+")"
	if fate == "" {
		f.Kind, f.Detail = Unknown, "the message has no such record"
	}
	l.find(f)
}

// rows are rows as they come.
type rows struct {
	next func() (warehouse.Row, error, bool)
	row  warehouse.Row
	over bool
}

func (r *rows) advance() error {
	row, err, ok := r.next()
	r.row, r.over = row, !ok
	return err
}

// absent is a record without a row of its own.
type absent struct {
	Finding
	key uint64 // its sorting key
	day string // of its timestamp
}

// searchAtOnce is how many ids are looked for by one query.
const searchAtOnce = 5000

// search decides about records without a row: the same record, sent again, may
// have taken its place.
func (l *lane) search(ctx context.Context) error {
	for len(l.missing) > 0 {
		some := l.missing[:min(len(l.missing), searchAtOnce)]
		ids := make([]string, len(some))
		for i, a := range some {
			ids[i] = a.ID
		}
		keys, err := l.db.Keys(ctx, ids)
		if err != nil {
			return err
		}
		for _, a := range some {
			t := l.minutes.at(a.Received)
			l.rowless[a.day]++
			if keys[a.key] {
				t.Merged++
				continue
			}
			t.Stored--
			t.Missing++
			l.find(a.Finding)
		}
		l.missing = l.missing[len(some):]
	}
	l.missing = nil
	return nil
}
