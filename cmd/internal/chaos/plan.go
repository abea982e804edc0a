package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/deployment"
)

// due is a fault and its time after the start of the run.
type due struct {
	at time.Duration
	Fault
}

// plan returns the schedule of a run. It is a pure function.
func plan(cfg Config, d *deployment.Deployment) []due {
	if cfg.Outage > 0 {
		at := max(0, cfg.For-cfg.Outage) / 2
		return []due{{at, outage(d.Process(deployment.Engine), cfg.Outage)}}
	}
	r := rand.New(rand.NewPCG(cfg.Seed, 0x5105))
	all := slices.Concat(milestones(cfg, d), steps(cfg, d), asked(cfg, d))
	for at := 2 * time.Second; at < cfg.For; at += gap(r, cfg.Every) {
		all = append(all, due{at, draw(r, d)})
	}
	all = slices.DeleteFunc(all, func(f due) bool { return f.Possible != nil && !f.Possible(d) })
	slices.SortStableFunc(all, func(a, b due) int { return cmp.Compare(a.at, b.at) })
	return all
}

// carryOutAll injects each fault at its time. It returns when all are healed, after the
// end of ctx or of a failed operation.
func (s *site) carryOutAll(ctx context.Context, schedule []due) error {
	began := time.Now()
	faults, ctx := errgroup.WithContext(ctx)
	for _, f := range schedule {
		if !deployment.Sleep(ctx, time.Until(began.Add(f.at))) {
			break
		}
		faults.Go(func() error {
			if err := s.carryOut(ctx, f.Fault); err != nil && f.Must {
				return fmt.Errorf("%s: %w", f.Name(), err)
			}
			return nil // the journal has the error
		})
	}
	return faults.Wait()
}

const clockStep = 10 * time.Minute

// steps returns the schedule of clock faults.
func steps(cfg Config, d *deployment.Deployment) (all []due) {
	clocks := machines(d)
	r := rand.New(rand.NewPCG(cfg.Seed, 0xc10c))
	for at := 2*time.Second + gap(r, 6*cfg.Every); at < cfg.For; at += gap(r, 6*cfg.Every) {
		by := clockStep
		if r.IntN(2) == 0 {
			by = -clockStep
		}
		all = append(all, due{at, stepClock(pick(r, clocks), by, between(r, time.Second, time.Minute))})
	}
	return all
}

// machines returns the names of all machines whose clocks are stepped.
func machines(d *deployment.Deployment) (all []string) {
	for _, p := range slices.Concat(d.Of(deployment.NATS), d.Of(deployment.API)) {
		all = append(all, p.Name)
	}
	return append(all, deployment.Operator)
}

// milestones returns the rare faults that every run includes.
func milestones(cfg Config, d *deployment.Deployment) (all []due) {
	add := func(at float64, f Fault) { all = append(all, due{time.Duration(at * float64(cfg.For)), f}) }
	add(0.05, addLane())
	if cfg.For >= 10*time.Minute { // each takes longer than NATS's duplicate window
		for i, source := range spreads {
			add(0.15+0.15*float64(i), spread(source))
		}
	}
	if nats := d.Of(deployment.NATS); cfg.For >= 3*time.Minute {
		add(0.50, addInRetry(9*time.Second))
		add(0.30, wipe(nats[0]))
		add(0.70, wipe(nats[len(nats)-1]))
	}
	for i, lane := range []string{"FLOW_1", "FLOW_0", "FLOW_1"} { // the lanes of the last source
		add(0.25+0.2*float64(i), fillLane(lane, time.Duration(3+3*i)*time.Second))
	}
	hold := cfg.RepeatWindow + cfg.RepeatWindow/6
	if apis := d.Of(deployment.API); cfg.For >= 2*hold {
		n := max(1, int(cfg.For/(4*hold)))
		for i := range n {
			add((0.2+float64(i))/float64(n), freeze(apis[i%len(apis)], hold))
		}
	}
	if cfg.SmallDisk {
		for i, name := range []string{deployment.Engine, deployment.NATS} {
			for n := range 4 {
				add(0.10+0.10*float64(i)+0.20*float64(n), fillDisk(d.Process(name), time.Duration(3+5*n)*time.Second))
			}
		}
	}
	return all
}

// spreads are sources that are moved to other lanes.
var spreads = []string{"engine-a", "ids-only", "bulk", anonymousSource}

// gap draws the time to the next fault. Some gaps let the ingesters catch up.
func gap(r *rand.Rand, mean time.Duration) time.Duration {
	return max(mean/10, min(4*mean, time.Duration(r.ExpFloat64()*float64(mean))))
}

func draw(r *rand.Rand, d *deployment.Deployment) Fault {
	process, link, server := pick(r, d.Processes), pick(r, slices.Sorted(maps.Keys(d.Links))), pick(r, d.Of(deployment.NATS))
	moment := between(r, time.Millisecond, 100*time.Millisecond)
	down := between(r, 50*time.Millisecond, 6*time.Second)
	long := between(r, 100*time.Millisecond, 25*time.Second)
	short := between(r, 100*time.Millisecond, 12*time.Second)
	// Every call makes all draws, so that a change of one kind leaves the rest of a
	// schedule unchanged.
	n := r.IntN(100)
	for _, weight := range []struct {
		upTo int
		f    Fault
	}{
		{32, kill(process, down)},
		{45, pause(process, long)},
		{54, restart(process, down/4)},
		{63, cut(link)},
		{69, delay(link, moment, short)},
		{76, stall(link, short)},
		{85, killInInsert(d.Process(deployment.Engine), moment, down)},
		{92, killInEntry(server, moment, down)},
		{100, killLeader(down)},
	} {
		if n < weight.upTo && (weight.f.Possible == nil || weight.f.Possible(d)) {
			return weight.f
		}
	}
	return kill(process, down)
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// between draws a duration, log-uniformly.
func between(r *rand.Rand, low, high time.Duration) time.Duration {
	d := time.Duration(float64(low) * math.Exp(r.Float64()*math.Log(float64(high)/float64(low))))
	return d.Round(time.Millisecond)
}
