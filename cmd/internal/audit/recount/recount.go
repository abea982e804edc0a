// Package recount makes the counters of days again from the records.
//
// It does so while records flow. What it needs is one moment in which nothing
// is being inserted:
//
//  1. Every lane is held: its ingester stores and records what it has claimed
//     and claims nothing new. Recount waits until no lane has a claim.
//  2. The counters of the day are compared with its records, as far as these were
//     stored after the expiry line.
//  3. The positions are read again. If all are as they were, nothing was
//     inserted meanwhile, by any owner and by any clock: the
//     differences are right, now and for ever, for what is inserted later adds
//     as much to both.
//  4. The differences are inserted under a token that is made of what was wrong.
//     A crash before or after, or another recount, inserts the same once.
//  5. It is looked once more; when nothing is wrong any more, the days are taken
//     out of the positions that named them, and the lanes are released.
//
// A lane whose hold was not released goes on when its time is up.
package recount

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sluice/cmd/internal/audit/expiry"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// Config says how long to hold and wait.
type Config struct {
	Hold time.Duration // most a lane stands still for one day, if recount dies; default 1 min
	Wait time.Duration // for blocks that are claimed; default 30 s
	Dry  bool          // compare, and change nothing
	By   string        // who holds the lanes: one of the same name takes over a hold at once; default a random name
}

func (c Config) withDefaults() Config {
	if c.Hold == 0 {
		c.Hold = time.Minute
	}
	if c.Wait == 0 {
		c.Wait = 30 * time.Second
	}
	return c
}

// Day is what came of one day.
type Day struct {
	Day     string `json:"day"`
	Missing int64  `json:"missing"` // records that were not counted
	Surplus int64  `json:"surplus"` // counted too often
	Mended  bool   `json:"mended"`

	// Unproved are the stored days of which its counters were in doubt that have expired
	// before they could be compared.
	Unproved []string `json:"unproved,omitempty"`
}

// Due are the days that positions name for a recount, those included of which nothing
// can be proved any more: a recount takes them out of the positions.
func Due(ctx context.Context, s *stream.Stream) ([]string, error) {
	if err := s.Refresh(ctx); err != nil {
		return nil, err
	}
	positions := stream.NewLaneStates(s)
	var days []string
	for _, lane := range s.LaneNumbers() {
		pos, err := positions.Read(ctx, lane)
		if err != nil {
			return nil, err
		}
		for _, d := range pos.Recount {
			if !slices.Contains(days, d.Day) {
				days = append(days, d.Day)
			}
		}
	}
	slices.Sort(days)
	return days, nil
}

// recount is one run.
type recount struct {
	cfg       Config
	stream    *stream.Stream
	positions *stream.LaneStates
	db        *warehouse.DB
	by        string
	line      string // what was stored up to this day may have expired
}

// Run makes the counters of the days again. Days that are done stay done,
// whatever the error.
func Run(ctx context.Context, s *stream.Stream, db *warehouse.DB, days []string, cfg Config) ([]Day, error) {
	r := &recount{
		cfg: cfg.withDefaults(), stream: s, positions: stream.NewLaneStates(s), db: db,
		by: cmp.Or(cfg.By, "recount-"+rand.Text()[:8]),
	}
	var all []Day
	for _, day := range days {
		one, err := r.day(ctx, day)
		all = append(all, one)
		if err != nil {
			return all, fmt.Errorf("count the records of %s again: %w", day, err)
		}
	}
	return all, nil
}

// rounds bounds how often a day is looked at: once to find what is wrong, once
// to see that it was mended, and more when lanes moved meanwhile.
const rounds = 10

// day makes the counters of one day right.
func (r *recount) day(ctx context.Context, day string) (result Day, err error) {
	result.Day = day
	defer func() { err = errors.Join(err, r.release(ctx)) }()
	held := map[int]flow.LaneState{}
	mended := map[string]int{} // what was inserted, by what was wrong
	for range rounds {
		found, err := r.look(ctx, day, held)
		if errors.Is(err, errMoved) {
			continue
		}
		if err != nil {
			return result, err
		}
		if len(mended) == 0 {
			result.Missing, result.Surplus = found.Missing, found.Surplus
		}
		if found.Right() {
			result.Unproved = r.unproved(day, held)
			if err := r.done(ctx, day, held); errors.Is(err, flow.ErrNotOwner) {
				continue
			} else if err != nil {
				return result, err
			}
			result.Mended = true
			return result, nil
		}
		if r.cfg.Dry {
			return result, nil
		}
		times := mended[found.Name()]
		if err := r.db.Mend(ctx, found, times); err != nil {
			return result, err // it may be done or not; the next recount does the same again
		}
		mended[found.Name()] = times + 1
	}
	return result, fmt.Errorf("after %d looks the lanes still move or the counters still differ", rounds)
}

// errMoved says that something was stored, or has expired, while it was looked.
var errMoved = errors.New("a lane moved")

// look compares the counters of a day with its records at a moment at which
// nothing is being inserted, and fills held with where the lanes stood.
func (r *recount) look(ctx context.Context, day string, held map[int]flow.LaneState) (*warehouse.Recount, error) {
	if err := r.hold(ctx, held); err != nil {
		return nil, err
	}
	line, err := expiry.Line(ctx, r.stream, r.db)
	if err != nil {
		return nil, err
	}
	r.line = line
	found, err := r.db.Recount(ctx, day, line)
	if err != nil {
		return nil, err
	}
	// Rows that have expired meanwhile would be taken out of counters that are kept longer.
	if line, err = expiry.Line(ctx, r.stream, r.db); err != nil || line != r.line {
		return nil, cmp.Or(err, errMoved)
	}
	if err := r.stream.Refresh(ctx); err != nil {
		return nil, err
	}
	for _, lane := range r.stream.LaneNumbers() {
		pos, err := r.positions.Read(ctx, lane)
		if err != nil {
			return nil, err
		}
		if pos.Revision != held[lane].Revision {
			return nil, errMoved
		}
	}
	return found, nil
}

// hold holds every lane and waits until none has a claim.
func (r *recount) hold(ctx context.Context, held map[int]flow.LaneState) error {
	now, err := r.positions.HoldAll(ctx, r.by, r.cfg.Hold, r.cfg.Wait)
	maps.Copy(held, now)
	return err
}

// unproved are the stored days of a day in doubt that have expired.
func (r *recount) unproved(day string, held map[int]flow.LaneState) (all []string) {
	for _, pos := range held {
		for _, d := range pos.Recount {
			if d.Day == day && d.Stored <= r.line && !slices.Contains(all, d.Stored) {
				all = append(all, d.Stored)
			}
		}
	}
	slices.Sort(all)
	return all
}

// done takes a day that is right out of what is due, and lets the lanes go on.
// A lane that has moved since it was looked may name the day anew.
func (r *recount) done(ctx context.Context, day string, held map[int]flow.LaneState) error {
	for lane, pos := range held {
		pos.Hold = nil
		pos.Recount = slices.DeleteFunc(slices.Clone(pos.Recount), func(due flow.Doubt) bool { return due.Day == day })
		if _, err := r.positions.CompareAndSwap(ctx, lane, pos); err != nil {
			return err
		}
	}
	return nil
}

// release lets the lanes go on.
func (r *recount) release(ctx context.Context) error { return r.positions.ReleaseAll(ctx, r.by) }
