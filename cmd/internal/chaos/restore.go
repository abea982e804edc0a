package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/programtest"
)

// later draws the time between a backup and its restore.
func later(r *rand.Rand, cfg Config) time.Duration { return between(r, cfg.For/30, cfg.For/8) }

// serversAlone returns the names held by a fault that stops servers of some kinds and
// replaces their data. No other fault may start or use them.
func serversAlone(d *deployment.Deployment, kinds ...string) (names []string) {
	names = append(serverLinks(d), allNATS)
	for _, kind := range append(kinds, deployment.Ingester) {
		for _, p := range d.Of(kind) {
			names = append(names, p.Name)
		}
	}
	return names
}

// restore restores NATS and ClickHouse as docs/backup.md says: ingesters are stopped, apis
// run without NATS, and then sources resend their records.
func restore(r *rand.Rand, cfg Config, d *deployment.Deployment) Fault {
	wait := later(r, cfg)
	return Fault{Kind: "restore", Alone: []string{laneSettings}, Inject: func(ctx context.Context, s *site) (func(), error) {
		folder, since := filepath.Join(s.Dir, "restored"), s.written()
		if err := s.backup(ctx, folder); err != nil {
			return nil, err
		}
		deployment.Sleep(ctx, wait)
		return nil, s.setBack(ctx, since, []string{deployment.NATS, deployment.Engine}, func(p *deployment.Process) error {
			return os.RemoveAll(p.Data)
		}, func() error {
			return s.operate(ctx, s.withTables("restore", "--from", folder)...)
		})
	}}
}

// setBackNATS restores only NATS from a copy of its data, and resets every lane to its last
// message.
func setBackNATS(r *rand.Rand, cfg Config, d *deployment.Deployment) Fault {
	return setBackAlone("set-back-nats", deployment.NATS, later(r, cfg), nil, func(ctx context.Context, s *site) error {
		var ends []laneEnd
		err := s.insist(ctx, "read the ends of the lanes", func(ctx context.Context) (err error) {
			ends, err = s.laneEnds(ctx)
			return err
		})
		for _, lane := range ends {
			if err == nil {
				err = s.operate(ctx, "lanes", "reset", "--lane", fmt.Sprint(lane.number), "--last", fmt.Sprint(lane.last), "--yes")
			}
		}
		return err
	})
}

// setBackClickHouse restores only ClickHouse from a copy of its data, and rebuilds its
// tables from the lanes as docs/runbooks/RecordsLostInTable.md says. The lanes must hold
// what is stored after the copy, however far behind they are.
func setBackClickHouse(r *rand.Rand, cfg Config, d *deployment.Deployment) Fault {
	return setBackAlone("set-back-clickhouse", deployment.Engine, later(r, cfg), pinMessages, func(ctx context.Context, s *site) error {
		var report struct {
			Swap []string `json:"swap"`
		}
		err := s.insist(ctx, "rebuild", func(ctx context.Context) error {
			out, err := s.Sluice(ctx, s.withTables(append([]string{"rebuild", "--json", "--into", "flow_back", "--nats", s.NATSURL}, s.window()...)...)...)
			if json.Unmarshal([]byte(out), &report) == nil && len(report.Swap) > 0 {
				err = nil // the command fails: the tables differ, as expected
			}
			if err == nil {
				return nil
			}
			if _, after, drops := strings.Cut(err.Error(), "sluice lanes reset"); drops { // an open claim
				command, _, _ := strings.Cut(after, ",")
				_, other := s.Sluice(ctx, append(append([]string{"lanes", "reset"}, strings.Fields(command)...), "--yes", "--nats", s.NATSURL)...)
				err = errors.Join(err, other)
			}
			return err
		})
		for _, sql := range append(report.Swap, "DROP DATABASE flow_back") {
			if err == nil {
				err = s.Exec(ctx, sql)
			}
		}
		return err
	})
}

// pinMessages pins the messages behind the checkpoints, until a rebuild removes its pins.
func pinMessages(ctx context.Context, s *site) error {
	return s.insist(ctx, "pin the messages of the lanes", func(ctx context.Context) error {
		ends, err := s.laneEnds(ctx)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		states, err := s.laneStates(ctx)
		for _, lane := range ends {
			if err == nil {
				_, err = states.Put(ctx, fmt.Sprintf("pin.%d.rebuild", lane.number), fmt.Appendf(nil, `{"from":%d,"until":%d}`, lane.done+1, time.Now().Add(time.Hour).UnixMilli()))
			}
		}
		return err
	})
}

// laneStates opens the bucket of lane states.
func (s *site) laneStates(ctx context.Context) (jetstream.KeyValue, error) {
	js, err := s.JetStream()
	if err != nil {
		return nil, err
	}
	return js.KeyValue(ctx, "flow_lanes")
}

func setBackAlone(kind, of string, wait time.Duration, prepare, repair func(context.Context, *site) error) Fault {
	return Fault{Kind: kind, Alone: []string{laneSettings}, Inject: func(ctx context.Context, s *site) (func(), error) {
		kept := filepath.Join(s.Dir, "kept-"+of)
		if err := os.RemoveAll(kept); err != nil {
			return nil, err
		}
		if prepare != nil {
			if err := prepare(ctx, s); err != nil {
				return nil, err
			}
		}
		var since mark
		if of == deployment.NATS {
			since = s.written()
			since.rows = true
		}
		if err := s.copyData(ctx, of, kept); err != nil {
			return nil, err
		}
		deployment.Sleep(ctx, wait)
		return nil, s.setBack(ctx, since, []string{of}, func(p *deployment.Process) error {
			return errors.Join(os.RemoveAll(p.Data), os.CopyFS(p.Data, os.DirFS(filepath.Join(kept, p.Name))))
		}, func() error { return repair(ctx, s) })
	}}
}

func (s *site) copyData(ctx context.Context, kind, to string) error {
	release, _ := s.holds.take(nil, serversAlone(s.Deployment, kind))
	defer release()
	err := s.insist(ctx, "wait for "+kind, func(ctx context.Context) error { return s.answer(ctx, kind) }) // a program that starts exits immediately on SIGTERM
	for _, p := range s.Of(kind) {
		err = errors.Join(err, p.Stop())
	}
	for _, p := range s.Of(kind) {
		if err == nil {
			err = os.CopyFS(filepath.Join(to, p.Name), os.DirFS(p.Data))
		}
		s.start(p)
	}
	return err
}

// setBack stops the ingesters and the servers of some kinds, replaces the servers' data,
// starts them, and repairs them while links are stalled. Then it starts everything, and
// sources resend their records.
func (s *site) setBack(ctx context.Context, since mark, kinds []string, replace func(*deployment.Process) error, repair func() error) error {
	release, _ := s.holds.take(nil, serversAlone(s.Deployment, kinds...))
	err := func() (err error) {
		defer release()
		for _, name := range serverLinks(s.Deployment) {
			s.Links[name].Stall()
			defer s.Links[name].Resume()
		}
		var servers []*deployment.Process
		for _, kind := range kinds {
			servers = append(servers, s.Of(kind)...)
		}
		for _, p := range slices.Concat(s.Of(deployment.Ingester), servers) {
			p.Kill()
		}
		defer func() {
			for _, p := range s.Of(deployment.Ingester) {
				s.start(p)
			}
		}()
		for _, p := range servers {
			err = errors.Join(err, replace(p))
		}
		for _, p := range servers {
			s.start(p)
		}
		if err != nil {
			return err
		}
		if err := s.insist(ctx, "wait for the servers", s.serversAnswer); err != nil {
			return err
		}
		s.journal.note("%s: set back", strings.Join(kinds, " and "))
		return repair()
	}()
	if err == nil { // the copy may be of the middle of a move
		err = s.stay(ctx)
	}
	if err != nil {
		return err
	}
	return s.resend(ctx, since)
}

// serversAnswer returns an error unless NATS and the engine answer.
func (s *site) serversAnswer(ctx context.Context) error {
	return errors.Join(s.answer(ctx, deployment.NATS), s.answer(ctx, deployment.Engine))
}

// answer returns an error unless NATS, or the engine, answers, links bypassed.
func (s *site) answer(ctx context.Context, kind string) error {
	if kind == deployment.Engine {
		return s.Exec(ctx, "SELECT 1")
	}
	for _, p := range s.Of(kind) {
		if err := programtest.AnswersOK(ctx, "http://"+p.HTTP+"/healthz"); err != nil {
			return err
		}
	}
	return nil
}

// laneEnd is a lane's last message and its checkpoint.
type laneEnd struct {
	number     int
	last, done uint64
}

// laneEnds returns the ends of all lanes, from sluice lanes list.
func (s *site) laneEnds(ctx context.Context) (all []laneEnd, err error) {
	out, err := s.Sluice(ctx, "lanes", "list", "--nats", s.NATSURL)
	for line := range strings.Lines(out) {
		var l laneEnd
		if n, _ := fmt.Sscan(line, &l.number, &l.last, &l.done); n == 3 {
			all = append(all, l)
		}
	}
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("no lane is in:\n%s", out)
	}
	return all, err
}

// lanesReset needlessly resets a lane to its checkpoint.
func lanesReset(r *rand.Rand, _ Config, d *deployment.Deployment) Fault {
	lane := r.IntN(2)
	var alone []string
	for _, p := range d.Of(deployment.Ingester) {
		alone = append(alone, p.Name)
	}
	return Fault{Kind: "lanes-reset", Target: fmt.Sprint("lane ", lane), Alone: alone, Inject: func(ctx context.Context, s *site) (func(), error) {
		for _, p := range s.Of(deployment.Ingester) { // the checkpoint must not move
			p.Kill()
		}
		heal := func() {
			for _, p := range s.Of(deployment.Ingester) {
				s.start(p)
			}
		}
		var ends []laneEnd
		err := s.insist(ctx, "read the checkpoint", func(ctx context.Context) (err error) {
			if ends, err = s.laneEnds(ctx); err == nil && lane >= len(ends) {
				err = fmt.Errorf("there is no lane %d", lane)
			}
			return err
		})
		if err != nil {
			return heal, err
		}
		return heal, s.operate(ctx, "lanes", "reset", "--lane", fmt.Sprint(lane), "--last", fmt.Sprint(ends[lane].done), "--yes")
	}}
}

// lanesOf, with a source, is held by a fault that moves it: two moves at a time restart each other for ever.
const lanesOf = "lanes of "

func spread(source string) Fault {
	return Fault{Kind: "spread", Target: source, Alone: []string{lanesOf + source},
		Possible: func(d *deployment.Deployment) bool { return d.Tokens[source] != "" },
		Inject:   func(ctx context.Context, s *site) (func(), error) { return nil, s.move(ctx, source) }}
}

// move spreads a source. A move that gives up is undone: otherwise every post of the source
// gets 503, and an operation that resends its records waits until the run ends.
func (s *site) move(ctx context.Context, source string, args ...string) error {
	err := s.operate(ctx, append([]string{"lanes", "spread", source}, args...)...)
	if err != nil {
		err = errors.Join(err, s.operate(context.WithoutCancel(ctx), "lanes", "spread", source, "--stay"))
	}
	return err
}

// stay undoes interrupted moves, whose sources get 503.
func (s *site) stay(ctx context.Context) (err error) {
	for _, source := range spreads {
		if s.Tokens[source] != "" && s.journal.sum()["spread"]+s.journal.sum()["away-and-back"] > 0 {
			err = errors.Join(err, s.operate(ctx, "lanes", "spread", source, "--stay"))
		}
	}
	return err
}

// awayAndBack moves a source to another lane and back, each time while the old lane has a
// backlog.
func awayAndBack(r *rand.Rand, cfg Config, _ *deployment.Deployment) Fault {
	const source = "ids-only"
	behind := between(r, time.Second, 10*time.Second)
	return Fault{Kind: "away-and-back", Target: source, Alone: []string{lanesOf + source}, Inject: func(ctx context.Context, s *site) (func(), error) {
		var first string // one of the source's lanes, unchanged throughout
		err := s.insist(ctx, "read the lanes of "+source, func(ctx context.Context) (err error) {
			first, err = s.firstLane(ctx, source)
			return err
		})
		if err != nil {
			return nil, err
		}
		other := map[bool]string{true: "1", false: "0"}[first == "0"]
		for _, lanes := range []string{first + "," + other, first} {
			links, release := s.take(deployment.Ingester, deployment.ToEngine)
			for _, l := range links {
				l.Stall()
			}
			moved := make(chan error, 1)
			go func() { moved <- s.move(ctx, source, "--lanes", lanes) }()
			deployment.Sleep(ctx, behind)
			for _, l := range links {
				l.Resume()
			}
			release()
			if err := <-moved; err != nil {
				return nil, err
			}
		}
		return nil, nil
	}}
}

// firstLane returns the first lane of a source, from sluice lanes list.
func (s *site) firstLane(ctx context.Context, source string) (string, error) {
	out, err := s.Sluice(ctx, "lanes", "list", "--nats", s.NATSURL)
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == source {
			first, _, _ := strings.Cut(fields[1], ",")
			return first, err
		}
	}
	return "", errors.Join(err, fmt.Errorf("source %s is not in:\n%s", source, out))
}
