package ingest_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

type tables struct{ *process }

func rowAt(c *record.Columns, i int) row {
	identity := string(c.Identity.Value(i))
	return row{
		flow.Identity{
			Source: string(c.Source.Value(i)), Content: identity, OwnID: string(c.OwnID.Value(i)),
			PartitionID: c.PartitionID[i], Position: c.Position[i], TS: c.TS[i], Key: c.Key[i],
			RecordType: string(c.RecordType.Value(i)), ValueType: string(c.ValueType.Value(i)), Intent: string(c.Intent.Value(i)),
		},
		place{c.StreamSeq[i], int(c.StreamIdx[i])}, int(c.Lane[i]), c.Incarnation[i], 0,
	}
}

func (r row) day() flow.SourceDay {
	d := flow.SourceDay{Source: r.Source, Partition: r.PartitionID, Day: flow.Day(r.TS)}
	if r.Content != "" {
		d.Partition = 0
	}
	return d
}

// mark is the high water mark that this row proves for its day.
func (r row) mark() int64 {
	if r.Content != "" {
		return r.TS
	}
	return r.Position
}

// arrive puts rows into the table or its view, unless it holds the token.
func (s tables) arrive(name, token string, sent []row) {
	if _, known := s.tokens[name][token]; known {
		return
	}
	s.tokens[name][token] = len(sent)
	rows, list := s.table, &s.rows
	if name == "view" {
		rows, list = s.view, &s.viewed
	}
	for _, r := range sent {
		rows[r.place]++
	}
	*list = append(*list, sent...)
}

func rowsAt(b record.Block) (all []row) {
	for i := b.From; i < b.To; i++ {
		r := rowAt(b.Columns, i)
		r.storedAt = b.StoredAt
		all = append(all, r)
	}
	return all
}

// arrive puts the rows of a block into the table or its view.
func (w *world) arrive(name string, b record.Block) {
	tables{&process{world: w}}.arrive(name, b.Token, rowsAt(b))
}

func (s tables) Insert(_ context.Context, b record.Block) error {
	// It may arrive when the columns hold another block.
	sent, refused := rowsAt(b), false
	s.mu.Lock()
	for i := b.From; i < b.To; i++ {
		refused = refused || s.refuse(b.Columns, i)
	}
	switch {
	case len(sent) == 0:
		s.broken = append(s.broken, "an insert of no rows")
	case slices.ContainsFunc(sent, func(r row) bool { return flow.Month(r.TS) != flow.Month(sent[0].TS) }):
		s.broken = append(s.broken, "an insert of several months")
	case b.StoredAt == 0:
		s.broken = append(s.broken, "an insert without a time")
	}
	s.mu.Unlock()
	store := func(tables ...string) func() error {
		return func() error {
			if refused {
				return &flow.StoreError{Class: flow.ClassPoison, Code: 469, Err: errors.New("refused")}
			}
			if err := s.insert(b); err != nil {
				return err
			}
			for _, name := range tables {
				s.arrive(name, b.Token, sent)
			}
			return nil
		}
	}
	err := s.doPartly(fmt.Sprintf("insert %s", b.Token), store("table", "view"), store("table"))
	if errors.Is(err, errInjected) {
		return &flow.StoreError{Class: flow.ClassRetry, Err: err}
	}
	return err
}

func (s tables) PartsSince(_ context.Context, then time.Time) (parts uint64, err error) {
	err = s.do("parts", func() error {
		if s.partsAt.IsZero() || !then.After(s.partsAt) {
			parts = s.partsSince
		}
		return nil
	})
	return parts, err
}

func (s tables) Visible(_ context.Context, b record.Block) (least, rows uint64, err error) {
	err = s.do("visible", func() error {
		for i := b.From; i < b.To; i++ {
			at := place{b.Columns.StreamSeq[i], int(b.Columns.StreamIdx[i])}
			if b.StoredAt == 0 || slices.ContainsFunc(s.rows, func(r row) bool { return r.place == at && r.storedAt == b.StoredAt }) {
				rows += uint64(s.table[at])
			}
		}
		if !s.lags {
			least = rows
		}
		return nil
	})
	return least, rows, err
}

func (s tables) Reaggregate(_ context.Context, b record.Block) error {
	return s.do("reaggregate", func() error {
		for i := b.From; i < b.To; i++ {
			if at := (place{b.Columns.StreamSeq[i], int(b.Columns.StreamIdx[i])}); s.table[at] > 0 && s.view[at] == 0 {
				s.view[at] = 1
				s.viewed = append(s.viewed, rowAt(b.Columns, i))
			}
		}
		return nil
	})
}

func (s tables) Clock(context.Context) (now time.Time, err error) {
	err = s.do("clock", func() error { now = time.Now().Add(s.skew); return nil })
	return now, err
}

// Known returns more than was requested, as the real one does.
func (s tables) Known(_ context.Context, c *record.Columns, rows []int, line string, found func(*flow.Identity)) error {
	return s.do(fmt.Sprintf("known of %d", len(rows)), func() error {
		days := map[int64]bool{}
		for _, i := range rows {
			days[flow.Day(c.TS[i])] = true
		}
		for _, r := range s.rows {
			if days[flow.Day(r.TS)] && flow.UTCDay(r.storedAt) > line {
				found(&r.Identity)
			}
		}
		return nil
	})
}

func (s tables) Marks(_ context.Context, lane int, incarnation uint64, days []flow.SourceDay) (marks flow.Marks, err error) {
	err = s.do(fmt.Sprintf("marks of %d", len(days)), func() error {
		marks.Last = map[flow.SourceDay]int64{}
		for _, r := range s.viewed {
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
		return nil
	})
	return marks, err
}

func (s tables) Inserting(context.Context, int) (running bool, err error) {
	err = s.do("running inserts", func() error { running = s.inserting; return nil })
	return running, err
}

func (s tables) StaleSourceDays(_ context.Context, lane int, incarnation uint64) (days []flow.SourceDay, err error) {
	err = s.do("stale days", func() error {
		for _, r := range s.rows {
			if r.lane == lane && r.incarnation == incarnation && !slices.ContainsFunc(s.viewed, func(t row) bool { return t.place == r.place }) {
				days = append(days, r.day())
			}
		}
		return nil
	})
	return days, err
}

func (s tables) Incarnations(_ context.Context, lane int, above uint64) (all []flow.Incarnation, err error) {
	err = s.do("incarnations", func() error {
		for _, r := range s.rows {
			at := slices.IndexFunc(all, func(in flow.Incarnation) bool { return in.ID == r.incarnation })
			switch {
			case r.lane != lane || r.incarnation <= above:
			case at < 0:
				all = append(all, flow.Incarnation{ID: r.incarnation, First: r.Seq})
			default:
				all[at].First = min(all[at].First, r.Seq)
			}
		}
		slices.SortFunc(all, func(a, b flow.Incarnation) int { return cmp.Compare(a.ID, b.ID) })
		return nil
	})
	return all, err
}

func (s tables) Last(_ context.Context, lane int, incarnation uint64) (of, seq uint64, err error) {
	err = s.do("last", func() error {
		for _, r := range s.rows {
			if r.lane == lane && incarnation == 0 && r.incarnation > of {
				of, seq = r.incarnation, 0
			}
			if r.lane == lane && (r.incarnation == incarnation || incarnation == 0 && r.incarnation == of) {
				seq = max(seq, r.Seq)
			}
		}
		return nil
	})
	return max(of, incarnation), seq, err
}
