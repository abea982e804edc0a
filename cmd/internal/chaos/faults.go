package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/cmd/internal/deployment"
)

// Fault is a temporary fault of a deployment.
type Fault struct {
	Kind   string        // counted in the report
	Target string        // process, link, disk, lane, source, or machine with a clock
	Hold   time.Duration // duration

	// Possible reports whether a deployment has the target; nil: always.
	Possible func(d *deployment.Deployment) bool

	// Needs are names held shared, Alone names held exclusively. See holds.
	Needs, Alone []string

	// Must ends the run when Inject fails.
	Must bool

	// Inject injects the fault. heal, which may be nil, undoes it after the hold or at the
	// end of ctx, also after an error.
	Inject func(ctx context.Context, s *site) (heal func(), err error)
}

func (f Fault) Name() string {
	name := strings.TrimSpace(f.Kind + " " + f.Target)
	if f.Hold > 0 {
		name += fmt.Sprintf(" for %v", f.Hold)
	}
	return name
}

// carryOut takes the names of a fault, injects it, logs and counts it, and heals it.
func (s *site) carryOut(ctx context.Context, f Fault) error {
	release, ok := s.holds.take(f.Needs, f.Alone)
	if !ok {
		s.journal.note("%s: skipped, another fault holds its target", f.Name())
		return nil
	}
	defer release()
	heal, err := f.Inject(ctx, s)
	if err != nil {
		s.journal.note("%s: %v", f.Name(), err)
	} else {
		s.journal.note("%s", f.Name())
		s.journal.count(f.Kind)
	}
	if heal != nil {
		deployment.Sleep(ctx, f.Hold)
		heal()
	}
	return err
}

// allNATS is held shared by faults that stop one NATS server, and exclusively by faults
// that need all: a server may lose its data only while the others have all of it.
const allNATS = "every NATS server"

// on is a fault of a process.
func on(kind string, p *deployment.Process, hold time.Duration) Fault {
	f := Fault{Kind: kind, Target: p.Name, Hold: hold, Needs: []string{p.Name}}
	if p.Kind == deployment.NATS {
		f.Needs = append(f.Needs, allNATS)
	}
	return f
}

var (
	errDown = errors.New("already down")
	errIdle = errors.New("idle")
)

func (s *site) start(p interface{ Start() error }) {
	if err := p.Start(); err != nil {
		s.journal.note("%v", err)
	}
}

// kill is SIGKILL and, after the hold, a start.
func kill(p *deployment.Process, hold time.Duration) Fault {
	f := on("kill", p, hold)
	f.Inject = func(_ context.Context, s *site) (func(), error) { return s.kill(p) }
	return f
}

func (s *site) kill(p *deployment.Process) (heal func(), err error) {
	if !p.Kill() {
		err = errDown
	}
	return func() { s.start(p) }, err
}

// pause is SIGSTOP and, after the hold, SIGCONT.
func pause(p *deployment.Process, hold time.Duration) Fault {
	f := on("pause", p, hold)
	f.Inject = func(context.Context, *site) (func(), error) {
		if !p.Pause() {
			return nil, errDown
		}
		return p.Resume, nil
	}
	return f
}

// restart is SIGTERM and, after the hold, a start. A late exit or a status other than 0
// counts as unclean.
func restart(p *deployment.Process, hold time.Duration) Fault {
	f := on("restart", p, hold)
	f.Inject = func(_ context.Context, s *site) (func(), error) {
		if err := p.Stop(); err != nil {
			s.journal.count(unclean)
			s.journal.note("%v", err)
		}
		return func() { s.start(p) }, nil
	}
	return f
}

// onLink returns a fault of a link; Resume heals it.
func onLink(kind, name string, hold time.Duration, do func(*deployment.Link)) Fault {
	return Fault{Kind: kind, Target: name, Hold: hold, Needs: []string{name}, Inject: func(_ context.Context, s *site) (func(), error) {
		do(s.Links[name])
		return s.Links[name].Resume, nil
	}}
}

func cut(name string) Fault {
	return onLink("cut", name, 0, func(l *deployment.Link) { l.Cut() })
}

func delay(name string, by, hold time.Duration) Fault {
	return onLink("delay", name, hold, func(l *deployment.Link) { l.Delay(by) })
}

func stall(name string, hold time.Duration) Fault {
	return onLink("stall", name, hold, (*deployment.Link).Stall)
}

// Texts that traps match: a header of every entry, and the insert of a block.
const (
	anEntry   = "Sluice-Entry"
	anInsert  = "INSERT INTO flow.records"
	patience  = 3 * time.Second         // of an ambush
	gathering = 1200 * time.Millisecond // requests gather into one entry
)

func killInInsert(engine *deployment.Process, moment, hold time.Duration) Fault {
	return ambush("kill-in-insert", engine, deployment.Ingester, deployment.ToEngine, anInsert, moment, hold)
}

// killInEntry kills the NATS server to which an api is connected, shortly after the api
// sent it an entry of many requests.
func killInEntry(nats *deployment.Process, moment, hold time.Duration) Fault {
	return ambush("kill-in-entry", nats, deployment.API, deployment.ToNATS, anEntry, moment/20, hold)
}

func ambush(kind string, p *deployment.Process, from, to, text string, moment, hold time.Duration) Fault {
	f := on(kind, p, hold)
	f.Inject = func(ctx context.Context, s *site) (func(), error) {
		links, release := s.take(from, to)
		defer release()
		sprung := trapAll(links, text, false)
		if text == anEntry {
			for _, l := range links {
				l.Stall()
			}
			deployment.Sleep(ctx, gathering)
			for _, l := range links {
				l.Resume()
			}
		}
		var idle error
		select {
		case <-sprung:
			time.Sleep(moment)
		case <-time.After(patience):
			idle = errIdle
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		heal, err := s.kill(p)
		return heal, errors.Join(err, idle)
	}
	return f
}

// take holds, shared, those links of processes of a kind that no fault holds exclusively.
func (s *site) take(from, to string) (links []*deployment.Link, release func()) {
	var releases []func()
	for _, p := range s.Of(from) {
		if r, ok := s.holds.take([]string{p.Name + to}, nil); ok {
			links, releases = append(links, s.Links[p.Name+to]), append(releases, r)
		}
	}
	return links, func() {
		for _, r := range releases {
			r()
		}
	}
}

// trapAll returns a channel that receives whenever the text passes one of the links.
func trapAll(links []*deployment.Link, text string, stall bool) <-chan struct{} {
	any := make(chan struct{}, len(links))
	for _, l := range links {
		sprung := l.Trap(text, stall)
		go func() { <-sprung; any <- struct{}{} }() // ends with the next such text or the run
	}
	return any
}

func severalNATS(d *deployment.Deployment) bool { return len(d.Of(deployment.NATS)) > 1 }

func killLeader(hold time.Duration) Fault {
	return Fault{Kind: "kill-leader", Hold: hold, Needs: []string{allNATS}, Possible: severalNATS,
		Inject: func(ctx context.Context, s *site) (func(), error) {
			leader, err := s.Leader(ctx, "FLOW_0")
			if err != nil {
				return nil, err
			}
			return s.kill(leader)
		}}
}

// wipe deletes the data of a NATS server and restarts it empty under its name, as after a
// disk failure.
func wipe(p *deployment.Process) Fault {
	return Fault{Kind: "wipe", Target: p.Name, Alone: []string{allNATS}, Possible: severalNATS,
		Inject: func(ctx context.Context, s *site) (func(), error) {
			ready, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			for _, server := range s.Of(deployment.NATS) {
				s.start(server)
			}
			if err := s.WaitCurrent(ready); err != nil {
				return nil, fmt.Errorf("not injected: the other servers are not current: %w", err)
			}
			p.Kill()
			err := os.RemoveAll(p.Data)
			s.start(p)
			return func() {
				began := time.Now()
				filled, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
				defer cancel()
				err := s.WaitCurrent(filled)
				s.journal.note("%s has caught up after %v: %v", p.Name, time.Since(began).Round(time.Millisecond), orYes(err))
			}, err
		}}
}

// operate runs a command and retries it while NATS is unreachable.
func (s *site) operate(ctx context.Context, args ...string) error {
	name := "sluice " + strings.Join(args, " ")
	return s.insist(ctx, name, func(ctx context.Context) error {
		out, err := s.Sluice(ctx, append(args, "--nats", s.NATSURL)...)
		if err == nil {
			s.journal.note("%s: %s", name, out)
		}
		return err
	})
}

// insist retries until success, because other faults stop servers meanwhile. It fails after
// the patience of the run.
func (s *site) insist(ctx context.Context, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		s.journal.note("%s: %v", what, err)
		if !deployment.Sleep(ctx, time.Second) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

// lanes returns the arguments of a command that may create a lane.
func (s *site) lanes(command string) []string {
	return append([]string{"lanes", command}, s.cfg.streams()...)
}

func addLane() Fault {
	return Fault{Kind: "add-lane", Inject: func(ctx context.Context, s *site) (func(), error) {
		return nil, s.operate(ctx, s.lanes("add")...)
	}}
}

// addInRetry adds a lane while requests are in flight for longer than their clients'
// timeout. Clients send them before and after the addition.
func addInRetry(hold time.Duration) Fault {
	return Fault{Kind: "add-in-retry", Hold: hold, Inject: func(ctx context.Context, s *site) (func(), error) {
		links, release := s.take(deployment.API, deployment.ToNATS)
		for _, l := range links {
			l.Stall()
		}
		return func() {
			defer release()
			if err := s.operate(ctx, s.lanes("add")...); err != nil {
				s.journal.note("add a lane: %v", err)
			}
			deployment.Sleep(ctx, hold/4)
			for _, l := range links {
				l.Resume()
			}
		}, nil
	}}
}

func outage(engine *deployment.Process, hold time.Duration) Fault {
	f := restart(engine, hold)
	f.Kind = "outage"
	return f
}

// stepClock steps the clock of a machine, and resets it after the hold.
func stepClock(machine string, by, hold time.Duration) Fault {
	return Fault{Kind: "step-clock", Target: fmt.Sprintf("%s by %v", machine, by), Hold: hold,
		Possible: func(d *deployment.Deployment) bool { return d.Clocks },
		Inject: func(ctx context.Context, s *site) (func(), error) {
			if err := s.SetClock(machine, by); err != nil {
				return nil, err
			}
			var err error
			if machine == deployment.Operator {
				err = s.operate(ctx, s.lanes("make")...)
			}
			return func() {
				if err := s.SetClock(machine, 0); err != nil {
					s.journal.note("%v", err)
				}
			}, err
		}}
}

// freeze pauses an api during a publish for longer than the deduplication window. The entry
// arrives in NATS after its window; then the api resumes, with NATS's acknowledgement in
// its socket. The entry is void, and no client gets OK.
func freeze(api *deployment.Process, hold time.Duration) Fault {
	road := api.Name + deployment.ToNATS
	return Fault{Kind: "freeze", Target: api.Name, Hold: hold, Alone: []string{api.Name, road, allNATS}, // a stopped server drops data in flight
		Inject: func(ctx context.Context, s *site) (func(), error) {
			link := s.Links[road]
			resume := func() { link.Disarm(); link.Resume() }
			select {
			case <-link.Trap(anEntry, true):
				deployment.Sleep(ctx, 200*time.Millisecond) // the rest of the entry
			case <-time.After(5 * time.Second):
				return resume, errors.New("idle: no entry to send")
			case <-ctx.Done():
				return resume, ctx.Err()
			}
			if !api.Pause() {
				return resume, errDown
			}
			return func() {
				resume()
				deployment.Sleep(ctx, 2*time.Second) // NATS appends and acknowledges it
				api.Resume()
			}, nil
		}}
}

// laneSettings is held shared by faults that change and restore a lane's configuration.
// Faults that set NATS back hold it exclusively: a restored stream has an old
// configuration.
const laneSettings = "settings of lanes"

// fillLane fills a lane's disk budget. The other lanes accept their chunks of a request.
func fillLane(lane string, hold time.Duration) Fault {
	return Fault{Kind: "fill-lane", Target: lane, Hold: hold, Needs: []string{laneSettings}, Inject: func(ctx context.Context, s *site) (func(), error) {
		js, err := s.JetStream()
		if err != nil {
			return nil, err
		}
		stream, err := js.Stream(ctx, lane)
		if err != nil {
			return nil, err
		}
		before := stream.CachedInfo().Config
		full := before
		full.MaxBytes = int64(max(stream.CachedInfo().State.Bytes, 1))
		return func() {
			for err := s.update(js, before); err != nil; err = s.update(js, before) {
				s.journal.note("restore the disk budget of %s: %v", lane, err)
				time.Sleep(time.Second)
			}
		}, s.update(js, full)
	}}
}

// update writes a stream's configuration while no fault stops a server: a server killed
// meanwhile loses the stream.
func (s *site) update(js jetstream.JetStream, cfg jetstream.StreamConfig) error {
	release, _ := s.holds.take(nil, []string{allNATS})
	defer release()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := js.UpdateStream(ctx, cfg)
	return err
}

func fillDisk(p *deployment.Process, hold time.Duration) Fault {
	f := on("fill-disk", p, hold)
	f.Inject = func(_ context.Context, s *site) (func(), error) {
		return func() {
			if err := s.disks[p.Name].empty(); err != nil {
				s.journal.note("%v", err)
			}
		}, s.disks[p.Name].fill()
	}
	return f
}

// replace stops a process and starts the program of the same name from another folder.
func replace(p *deployment.Process, bin string) Fault {
	f := on("replace", p, 0)
	f.Inject = func(ctx context.Context, _ *site) (func(), error) {
		return nil, p.Replace(context.WithoutCancel(ctx), bin)
	}
	return f
}
