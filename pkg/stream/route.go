package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice/pkg/record"
)

// route gives pieces of one source the lanes that it has now.
func (p *Publisher) route(ctx context.Context, a *attempts, list []*piece) error {
	name := list[0].message.Source
	_, v, err := p.source(ctx, a, name)
	if err != nil {
		return err
	}
	for _, pc := range list {
		lane, err := p.lane(v, name, pc.slot, pc.slots)
		if err != nil {
			return err
		}
		if lane == nil {
			if v, err = p.stream.lookNow(ctx); err != nil { // it may be newer than the look-up
				return err
			}
			if lane, err = p.lane(v, name, pc.slot, pc.slots); err != nil {
				return err
			}
			if lane == nil {
				return held(10*time.Second, "lane %d of %q is missing", v.sources[name].Lanes[pc.slot], name)
			}
		}
		pc.lane, pc.until = lane, p.stream.until(v)
		pc.message.Lane = lane.Number
	}
	return nil
}

// lane is where the records of a slot go, of so many slots. It is nil when the
// lane is not known.
func (p *Publisher) lane(v *view, source string, slot, slots int) (*Lane, error) {
	known := v.sources[source]
	switch {
	case known == nil || len(known.Lanes) == 0:
		return nil, held(10*time.Second, "the entry of %q is damaged", source)
	case known.Moving != nil:
		return nil, held(10*time.Second, "%q is being moved to lanes %v", source, known.Moving)
	case len(known.Lanes) != slots:
		return nil, held(time.Second, "%q has %d lanes by now", source, len(known.Lanes))
	}
	lane, _ := v.lane(known.Lanes[slot])
	return lane, nil
}

// source finds a source, as it was looked up a short time ago; one that is first
// seen gets its lanes.
func (p *Publisher) source(ctx context.Context, a *attempts, name string) (*Source, *view, error) {
	begun := time.Now()
	v, err := p.stream.routable(ctx)
	known := (*Source)(nil)
	if err == nil {
		if known = v.sources[name]; known == nil {
			known, v, err = p.first(ctx, name)
		}
	}
	if err != nil {
		if a.silent.IsZero() { // it has waited for an answer
			if a.silent = begun; !a.since.IsZero() {
				a.silent = a.link.silentSince(a.since)
			}
		}
		return nil, nil, err
	}
	if len(known.Lanes) == 0 {
		return nil, nil, held(10*time.Second, "the entry of %q is damaged", name)
	}
	return known, v, nil
}

// first gives a source that nobody knew its lanes: all there are now.
func (p *Publisher) first(ctx context.Context, name string) (*Source, *view, error) {
	v, err := p.stream.lookNow(ctx)
	if err != nil {
		return nil, nil, err
	}
	if known := v.sources[name]; known != nil {
		return known, v, nil
	}
	asking, done := p.stream.link.attempt(ctx, patience)
	err = lost(asking, p.stream.meet(asking, name, v.lanes))
	done()
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errStale, err)
	}
	// Met. A crash here leaves a source without records.
	if v, err = p.stream.lookNow(ctx); err != nil {
		return nil, nil, err
	}
	known := v.sources[name]
	if known == nil {
		return nil, nil, fmt.Errorf("%w: source %q is not there yet", errStale, name)
	}
	return known, v, nil
}

// worse says whether a submitter should rather hear of err than of other: that
// it will never go in, or that nobody knows whether it is in.
func worse(err, other error) bool {
	if err == nil || other == nil {
		return err != nil
	}
	for _, first := range []error{record.ErrKeyReused, record.ErrTooLarge, record.ErrUnavailable} {
		if errors.Is(other, first) {
			return false
		}
		if errors.Is(err, first) {
			return true
		}
	}
	return false
}
