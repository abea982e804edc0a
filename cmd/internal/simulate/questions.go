package simulate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sluice/pkg/change"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/stream"
)

func (c client) Visible(ctx context.Context, b record.Block) (least, most uint64, err error) {
	wanted := map[at]bool{}
	for _, r := range rowsOf(b) {
		wanted[r.at()] = true
	}
	count := func(t tables) (n uint64) {
		for _, r := range t.rows[records] {
			if wanted[r.at()] && (b.StoredAt == 0 || r.storedAt == b.StoredAt) {
				n++
			}
		}
		return n
	}
	type answer struct{ least, most uint64 }
	a, err := question(ctx, c, "visible", func() answer {
		n := count(c.tables)
		if c.lagging == nil {
			return answer{n, n}
		}
		old := count(*c.lagging)
		if old != n {
			c.saw("replicas differ")
		}
		return answer{min(old, n), max(old, n)}
	})
	return a.least, a.most, err
}

func (c client) PartsSince(ctx context.Context, then time.Time) (uint64, error) {
	return question(ctx, c, "parts", func() uint64 {
		c.counted = time.Now()
		before := uint64(0)
		for _, n := range c.counts {
			if n.at.Before(then) {
				before = n.parts
			}
		}
		return c.parts - before
	})
}

// Only the view of sources may receive rows twice.
func (c client) Reaggregate(ctx context.Context, b record.Block) error {
	wanted := map[at]bool{}
	for _, r := range rowsOf(b) {
		wanted[r.at()] = true
	}
	confirmed, err := question(ctx, c, "reaggregate", func() bool {
		c.saw("reaggregate")
		for _, r := range c.rows[records] {
			if wanted[r.at()] && !slices.ContainsFunc(c.rows[sources], func(s row) bool { return s.at() == r.at() }) {
				c.rows[sources] = append(c.rows[sources], r)
			}
		}
		return c.lagging == nil
	})
	if err == nil && !confirmed {
		return errUnconfirmed
	}
	return err
}

type expiry struct {
	client
	stream *stream.Stream
}

func (e expiry) Line(ctx context.Context) (string, error) {
	line, err := e.stream.ExpiryLine(ctx)
	if err != nil {
		return "", err
	}
	due, err := question(ctx, e.client, "due", func() string { return dueAt(e.warehouse.now().Add(dueEarly)) })
	return max(line, due), err
}

func (c client) Clock(ctx context.Context) (time.Time, error) {
	return question(ctx, c, "clock", c.warehouse.now)
}

// Known returns surplus rows, like the real one.
func (c client) Known(ctx context.Context, columns *record.Columns, rows []int, line string, found func(*flow.Identity)) error {
	days := map[int64]bool{}
	for _, i := range rows {
		days[flow.Day(columns.TS[i])] = true
	}
	all, err := question(ctx, c, fmt.Sprintf("known of %d", len(rows)), func() (all []flow.Identity) {
		for _, r := range c.rows[records] {
			if days[flow.Day(r.TS)] && flow.UTCDay(r.storedAt) > line {
				all = append(all, r.Identity)
			}
		}
		return all
	})
	for i := range all {
		found(&all[i])
	}
	return err
}

func (c client) Marks(ctx context.Context, lane int, incarnation uint64, days []flow.SourceDay) (flow.Marks, error) {
	return question(ctx, c, "marks", func() (marks flow.Marks) {
		marks.Last = map[flow.SourceDay]int64{}
		for _, r := range c.rows[sources] {
			if r.lane == lane && r.incarnation == incarnation {
				marks.Rows++
			}
			if day := r.day(); slices.Contains(days, day) {
				last, there := marks.Last[day]
				if marks.Last[day] = r.mark(); there {
					marks.Last[day] = max(last, r.mark())
				}
			}
		}
		return marks
	})
}

func (c client) StaleSourceDays(ctx context.Context, lane int, incarnation uint64) ([]flow.SourceDay, error) {
	return question(ctx, c, "stale days", func() (days []flow.SourceDay) {
		there := map[at]bool{}
		for _, r := range c.rows[sources] {
			there[r.at()] = true
		}
		for _, r := range c.rows[records] {
			if r.lane == lane && r.incarnation == incarnation && !there[r.at()] {
				days = append(days, r.day())
			}
		}
		return days
	})
}

func (c client) Inserting(ctx context.Context, lane int) (bool, error) {
	return question(ctx, c, "running inserts", func() bool {
		return slices.ContainsFunc(c.process.parked, func(o *call) bool {
			return !o.done && o.fate != silent && strings.HasPrefix(o.name, "insert "+flow.TokensOf(lane))
		})
	})
}

func (c client) Last(ctx context.Context, lane int, incarnation uint64) (of, seq uint64, err error) {
	type answer struct{ of, seq uint64 }
	a, err := question(ctx, c, "last", func() (a answer) {
		for _, r := range c.rows[records] {
			if r.lane == lane && incarnation == 0 && r.incarnation > a.of {
				a.of, a.seq = r.incarnation, 0
			}
			if r.lane == lane && (r.incarnation == incarnation || incarnation == 0 && r.incarnation == a.of) {
				a.seq = max(a.seq, r.seq)
			}
		}
		return a
	})
	return max(a.of, incarnation), a.seq, err
}

func (c client) Incarnations(ctx context.Context, lane int, above uint64) ([]flow.Incarnation, error) {
	return question(ctx, c, "incarnations", func() (all []flow.Incarnation) {
		first := map[uint64]uint64{}
		for _, r := range c.rows[records] {
			if seq, there := first[r.incarnation]; r.lane == lane && r.incarnation > above && (!there || r.seq < seq) {
				first[r.incarnation] = r.seq
			}
		}
		for _, id := range slices.Sorted(maps.Keys(first)) {
			all = append(all, flow.Incarnation{ID: id, First: first[id]})
		}
		return all
	})
}

// InsertChanges stores nothing: the audit is not compared.
func (c client) InsertChanges(ctx context.Context, _ string, _ []change.Audit) error {
	_, err := question(ctx, c, "write down changes", func() bool { return true })
	return err
}
