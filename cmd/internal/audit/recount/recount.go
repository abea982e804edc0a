// Package recount recomputes daily counters from the records, while records flow. It
// needs one moment without inserts:
//
//  1. Every lane is held: its ingester stores its claimed block and claims nothing new.
//     Recount waits until no lane has a claim.
//  2. The counters of the day are compared with its records, as far as these were
//     stored after the expiry line.
//  3. The lane states are read again. If their revisions are unchanged, nothing was
//     inserted meanwhile, by any owner and by any clock. The differences are then final:
//     later inserts add the same to both.
//  4. The differences are inserted under a token made of them. A crash before or after,
//     or another recount, inserts them once.
//  5. The comparison is repeated. When counters and records agree, the days are removed
//     from the lane states that list them, and the lanes are released.
//
// A hold that was not released expires, and the lane resumes.
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

type Config struct {
	Hold time.Duration // maximum pause of a lane per day, if recount dies; default 1 min
	Wait time.Duration // for claimed blocks; default 30 s
	Dry  bool          // only compare
	By   string        // holder of the lanes: the same name takes over a hold immediately; default a random name
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

// Day is the result of one day.
type Day struct {
	Day     string `json:"day"`
	Missing int64  `json:"missing"` // records not counted
	Surplus int64  `json:"surplus"` // counted without a record
	Fixed   bool   `json:"fixed"`   // or right from the start

	// Unproved are the stored days in doubt that expired before they could be compared.
	Unproved []string `json:"unproved,omitempty"`
}

// Due are the days that lane states list for a recount, including expired ones: a recount
// removes these from the lane states.
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
	line      string // the expiry line
}

// Run recounts the days in order. After an error the days before stay recounted.
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
			return all, fmt.Errorf("recount %s: %w", day, err)
		}
	}
	return all, nil
}

// rounds bounds the comparisons of a day: one finds the differences, one confirms the
// fix, and more are needed when lanes move meanwhile.
const rounds = 10

func (r *recount) day(ctx context.Context, day string) (result Day, err error) {
	result.Day = day
	defer func() { err = errors.Join(err, r.release(ctx)) }()
	held := map[int]flow.LaneState{}
	fixes := map[string]int{} // inserts, by the differences they fix
	for range rounds {
		found, err := r.compare(ctx, day, held)
		if errors.Is(err, errMoved) {
			continue
		}
		if err != nil {
			return result, err
		}
		if len(fixes) == 0 {
			result.Missing, result.Surplus = found.Missing, found.Surplus
		}
		if found.Right() {
			result.Unproved = r.unproved(day, held)
			if err := r.done(ctx, day, held); errors.Is(err, flow.ErrNotOwner) {
				continue
			} else if err != nil {
				return result, err
			}
			result.Fixed = true
			return result, nil
		}
		if r.cfg.Dry {
			return result, nil
		}
		times := fixes[found.Name()]
		if err := r.db.Fix(ctx, found, times); err != nil {
			return result, err // unknown outcome; the next recount repeats it under the same token
		}
		fixes[found.Name()] = times + 1
	}
	return result, fmt.Errorf("lanes still move or counters still differ after %d comparisons: check that every ingester runs this version, and retry", rounds)
}

// errMoved: rows were stored or expired during a comparison.
var errMoved = errors.New("a lane moved")

// compare compares the counters of a day with its records at a moment without inserts,
// and fills held with the lane states of that moment.
func (r *recount) compare(ctx context.Context, day string, held map[int]flow.LaneState) (*warehouse.Recount, error) {
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
	// Rows that expired meanwhile would be subtracted from counters with a longer retention.
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

// done removes a day from the lane states and releases the lanes. It fails with
// ErrNotOwner if a lane moved since the comparison: it may have listed the day again.
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

func (r *recount) release(ctx context.Context) error { return r.positions.ReleaseAll(ctx, r.by) }
