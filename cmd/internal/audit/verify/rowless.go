package verify

import (
	"context"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/ingest/dedup"
	"sluice/pkg/record"
)

// searchAtOnce is the number of records per lookup query.
const searchAtOnce = 20_000

// rowless are records without a row of their own: deduplicated, or missing.
type rowless struct {
	columns  record.Columns
	received []time.Time
}

// add adds the records of a message that pick selects by their index in the entry.
func (r *rowless) add(m *flow.Message, pick func(index int) bool) error {
	some := false
	for index := m.Index; index < m.Index+max(m.Records, 1); index++ {
		some = some || pick(index)
	}
	if !some {
		return nil
	}
	before := r.columns.Rows()
	if err := r.columns.AppendExcept(m, func(index int) bool { return !pick(index) }); err != nil {
		return err
	}
	for range r.columns.Rows() - before {
		r.received = append(r.received, m.Received)
	}
	return nil
}

// search classifies records without a row of their own: one that equals a stored record,
// or an earlier one of them, is deduplicated. The others are missing.
func (l *lane) search(ctx context.Context) error {
	c := &l.rowless.columns
	same := dedup.NewSame(c)
	if c.Rows() > 0 {
		known := make([]int, c.Rows())
		for row := range known {
			known[row] = row
		}
		if err := l.db.Known(ctx, c, known, "", same.Stored); err != nil {
			return err
		}
	}
	for row := range c.Rows() {
		received := l.rowless.received[row]
		t := l.minutes.at(received)
		f := Finding{Kind: Repeated, Lane: l.Lane.Lane, Sequence: c.StreamSeq[row], Index: int(c.StreamIdx[row]), ID: c.ID(row), Received: received}
		t.Stored--
		sentBefore := same.Add(row)
		switch sure, perhaps := l.again[origin{l.position.Incarnation(), l.Lane.Lane, f.Sequence, f.Index}]; {
		case sentBefore:
		case c.Kind[row] != flow.ByPlace:
			if l.aged && flow.UTCDay(c.TS[row]) <= l.line {
				sentBefore = true // its original may have expired: the totals decide
				l.unsure++
			}
		case perhaps:
			if sentBefore = true; !sure {
				l.unsure++
			}
		}
		if sentBefore {
			t.Repeated++
			l.kept.Stored--
			l.kept.Deduplicated++
			l.repeated(f)
			continue
		}
		t.Missing++
		l.rowlessDays[time.UnixMilli(c.TS[row]).UTC().Format(time.DateOnly)]++
		f.Kind = Missing
		l.find(f)
	}
	c.Reset()
	l.rowless.received = l.rowless.received[:0]
	return nil
}

// repeated names a deduplicated record if Config.Repeats is set.
func (v *verifier) repeated(f Finding) {
	if v.cfg.Repeats && len(v.report.Repeats) < v.cfg.Limit {
		v.report.Repeats = append(v.report.Repeats, f)
	}
}
