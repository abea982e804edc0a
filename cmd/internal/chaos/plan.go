package main

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// kind is a way to break something.
type kind int

const (
	kill         kind = iota // kill -9, and start again after hold
	pause                    // SIGSTOP, SIGCONT after hold
	restart                  // SIGTERM, start again at once
	cut                      // reset all connections of a link
	slow                     // every chunk on a link takes this much longer, for hold
	stall                    // nothing goes through a link for hold
	killInInsert             // kill -9 the engine soon after an insert went out to it
	killInEntry              // kill -9 NATS soon after an entry went out to it
	killLeader               // kill -9 the NATS server that leads lane 0
	wipe                     // stop a NATS server, delete its data, start it again
	addLane                  // sluice lanes add
	spread                   // sluice lanes spread, of a source
	fillDisk                 // no room on a disk for hold
	outage                   // stop the engine for hold
	stepClock                // step the clock of a machine, and back after hold
	freeze                   // SIGSTOP an api in the middle of a publish, for hold: longer than the window
	addInRetry               // sluice lanes add while requests are on their way, for hold
	fillLane                 // a lane has no room for hold
)

func (k kind) String() string {
	return [...]string{"kill", "stop", "restart", "cut", "delay", "stall", "kill in mid-insert",
		"kill in mid-entry", "kill the leader", "wipe", "add a lane", "spread", "fill the disk", "outage",
		"step the clock of", "freeze", "add a lane in mid-retry", "fill lane"}[k]
}

// fault is something that is done to a service or a link.
type fault struct {
	at     time.Duration // since the beginning
	kind   kind
	target string        // service, link or disk; empty when the kind says it
	hold   time.Duration // how long it lasts
	fine   time.Duration // a delay within the fault
	step   time.Duration // of a clock
}

func (f fault) String() string {
	s := f.kind.String()
	if f.target != "" {
		s += " " + f.target
	}
	if f.step != 0 {
		s += fmt.Sprintf(" by %v", f.step)
	}
	if f.hold > 0 {
		s += fmt.Sprintf(" for %v", f.hold)
	}
	return s
}

// scene is what there is to break.
type scene struct {
	services []string
	links    []string
	disks    []string
	nats     []string // among services
	apis     []string // among services

	sources []string // whose records are posted
}

// plan makes the schedule of a run. It follows from its arguments alone.
func plan(cfg Config, s scene) []fault {
	if cfg.Outage > 0 {
		at := max(0, cfg.For-cfg.Outage) / 2
		return []fault{{at: at, kind: outage, target: serviceEngine, hold: cfg.Outage}}
	}
	r := rand.New(rand.NewPCG(cfg.Seed, 0x5105))
	var all []fault
	rare := milestones(cfg, s)
	for at := 2 * time.Second; at < cfg.For; at += gap(r, cfg.Every) {
		for len(rare) > 0 && rare[0].at <= at {
			all = append(all, rare[0])
			rare = rare[1:]
		}
		f := draw(r, s)
		f.at = at
		all = append(all, f)
	}
	all = append(all, steps(cfg, s)...)
	slices.SortStableFunc(all, func(a, b fault) int { return cmp.Compare(a.at, b.at) })
	return all
}

// clockStep is how far clocks are stepped.
const clockStep = 10 * time.Minute

// steps are the faults of clocks: a schedule of their own, beside the others.
func steps(cfg Config, s scene) []fault {
	clocks := slices.Concat(s.nats, s.apis, []string{operator})
	r := rand.New(rand.NewPCG(cfg.Seed, 0xc10c))
	var all []fault
	for at := 2*time.Second + gap(r, 6*cfg.Every); at < cfg.For; at += gap(r, 6*cfg.Every) {
		f := fault{at: at, kind: stepClock, target: pick(r, clocks), step: clockStep, hold: between(r, time.Second, time.Minute)}
		if r.IntN(2) == 0 {
			f.step = -clockStep
		}
		all = append(all, f)
	}
	return all
}

// milestones are the rare faults that no run should be without, in order.
func milestones(cfg Config, s scene) []fault {
	var all []fault
	add := func(at float64, f fault) {
		f.at = time.Duration(at * float64(cfg.For))
		all = append(all, f)
	}
	add(0.05, fault{kind: addLane})
	if cfg.For >= 10*time.Minute { // each takes longer than the duplicate window
		for i, source := range []string{"engine-a", "ids-only", "bulk", anonymousSource} {
			if slices.Contains(s.sources, source) {
				add(0.15+0.15*float64(i), fault{kind: spread, target: source})
			}
		}
	}
	if cfg.For >= 3*time.Minute {
		add(0.50, fault{kind: addInRetry, hold: 9 * time.Second})
		if last := len(s.nats) - 1; last > 0 {
			add(0.30, fault{kind: wipe, target: s.nats[0]})
			add(0.70, fault{kind: wipe, target: s.nats[last]})
		}
	}
	for i, lane := range []string{"FLOW_1", "FLOW_0", "FLOW_1"} { // where the source that came last is
		add(0.25+0.2*float64(i), fault{kind: fillLane, target: lane, hold: time.Duration(3+3*i) * time.Second})
	}
	hold := cfg.RepeatWindow + cfg.RepeatWindow/6
	if cfg.For >= 2*hold {
		n := max(1, int(cfg.For/(4*hold)))
		for i := range n {
			add((0.2+float64(i))/float64(n), fault{kind: freeze, target: s.apis[i%len(s.apis)], hold: hold})
		}
	}
	for i, name := range s.disks {
		for n := range 4 {
			add(0.10+0.10*float64(i)+0.20*float64(n), fault{kind: fillDisk, target: name, hold: time.Duration(3+5*n) * time.Second})
		}
	}
	slices.SortStableFunc(all, func(a, b fault) int { return cmp.Compare(a.at, b.at) })
	return all
}

// gap is the time to the next fault: now and then a long one, to catch up.
func gap(r *rand.Rand, mean time.Duration) time.Duration {
	return max(mean/10, min(4*mean, time.Duration(r.ExpFloat64()*float64(mean))))
}

// draw draws one fault.
func draw(r *rand.Rand, s scene) fault {
	service, link := pick(r, s.services), pick(r, s.links)
	f := fault{fine: between(r, time.Millisecond, 100*time.Millisecond)}
	// All draws are made whatever comes of them, so that a change of one kind
	// leaves the rest of a schedule as it was.
	down := between(r, 50*time.Millisecond, 6*time.Second)
	long := between(r, 100*time.Millisecond, 25*time.Second)
	short := between(r, 100*time.Millisecond, 12*time.Second)
	server := pick(r, s.nats)
	n := r.IntN(100)
	weights := []struct {
		upTo int
		f    fault
		is   bool
	}{
		{32, fault{kind: kill, target: service, hold: down}, true},
		{45, fault{kind: pause, target: service, hold: long}, true},
		{54, fault{kind: restart, target: service, hold: down / 4}, true},
		{63, fault{kind: cut, target: link}, true},
		{69, fault{kind: slow, target: link, hold: short}, true},
		{76, fault{kind: stall, target: link, hold: short}, true},
		{85, fault{kind: killInInsert, target: serviceEngine, hold: down}, true},
		{92, fault{kind: killInEntry, target: server, hold: down}, true},
		{100, fault{kind: killLeader, hold: down}, len(s.nats) > 1},
	}
	for _, w := range weights {
		if n < w.upTo && w.is {
			w.f.fine = f.fine
			return w.f
		}
	}
	return fault{kind: kill, target: service, hold: down, fine: f.fine}
}

func pick(r *rand.Rand, from []string) string { return from[r.IntN(len(from))] }

// between draws a time so that each order of magnitude is as likely.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	d := time.Duration(float64(least) * math.Exp(r.Float64()*math.Log(float64(most)/float64(least))))
	return d.Round(time.Millisecond)
}
