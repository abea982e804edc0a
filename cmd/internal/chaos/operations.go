package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/programtest"
)

// operation is an operator's action or an event of an installation: a named fault that a run
// carries out at most once.
type operation struct {
	name  string
	on    bool // by default
	fault func(r *rand.Rand, cfg Config, d *deployment.Deployment) Fault
}

// Operations that are off by default have no clean run yet.
var operations = []operation{
	{"backup", true, backup},
	{"recount", true, recount},
	{"rebuild", true, rebuild},
	{"migrate-ttl", true, migrateTTL},
	{"dead-replay", true, deadReplay},
	{"forget", true, forget},
	{"two-sources", true, twoSources},
	{"clock-days", true, clockDays},
	{"restore", true, restore},
	{"away-and-back", true, awayAndBack},
	{"lanes-reset", true, lanesReset},
	{"set-back-nats", true, setBackNATS},
	{"set-back-clickhouse", true, setBackClickHouse},
	{"expire", true, expire},
}

// none in Config.Faults disables all operations.
const none = "none"

// operations returns the operations of a run, in the order of the table.
func (c Config) operations() (all []operation, err error) {
	for _, name := range c.Faults {
		if name != none && !slices.ContainsFunc(operations, func(o operation) bool { return o.name == name }) {
			return nil, fmt.Errorf("--faults %s: use some of %s, or %s", name, strings.Join(operationNames(), ", "), none)
		}
	}
	for _, o := range operations {
		if len(c.Faults) == 0 && o.on && !c.Brokers && c.Outage == 0 || slices.Contains(c.Faults, o.name) {
			all = append(all, o)
		}
	}
	return all, nil
}

func operationNames() (names []string) {
	for _, o := range operations {
		names = append(names, o.name)
	}
	return names
}

// does reports whether a run carries out an operation.
func (c Config) does(name string) bool {
	all, _ := c.operations() // unknown names were rejected before
	return slices.ContainsFunc(all, func(o operation) bool { return o.name == name })
}

// oneOperation serializes operations. It sorts before all other names, since an operation that
// holds it takes more of them.
const oneOperation = "an operator"

// asked schedules the operations of a run over its middle, in a random order.
func asked(cfg Config, d *deployment.Deployment) (all []due) {
	r := rand.New(rand.NewPCG(cfg.Seed, 0x09e7))
	chosen, _ := cfg.operations()
	r.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	for i, o := range chosen {
		f := o.fault(r, cfg, d)
		f.Must, f.Alone = true, append(f.Alone, oneOperation)
		inject := f.Inject
		f.Inject = func(ctx context.Context, s *site) (func(), error) {
			// Operations that are due when the time ends are carried out too.
			whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
			defer cancel()
			defer context.AfterFunc(ctx, func() {
				if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
					cancel()
				}
			})()
			return inject(whole, s)
		}
		at := 0.15 + 0.6*float64(i)/float64(len(chosen))
		all = append(all, due{time.Duration(at * float64(cfg.For)), f})
	}
	return all
}

var errNotInjected = errors.New("a requested fault was never injected")

// injected returns an error if a requested operation was not carried out.
func (c Config) injected(done counts) error {
	all, err := c.operations()
	for _, o := range all {
		if done[o.name] == 0 {
			err = errors.Join(err, fmt.Errorf("%w: %s", errNotInjected, o.name))
		}
	}
	return err
}

// command returns an operation that runs one sluice command.
func command(kind string, args func(s *site) []string) Fault {
	return Fault{Kind: kind, Inject: func(ctx context.Context, s *site) (func(), error) {
		return nil, s.operate(ctx, args(s)...)
	}}
}

// withTables adds the address of ClickHouse to the arguments of a command.
func (s *site) withTables(args ...string) []string {
	return append(args, "--clickhouse", s.ClickHouse())
}

func (s *site) window() []string { return []string{"--repeat-window", s.cfg.RepeatWindow.String()} }

// backup takes a backup while records flow, and resumes an interrupted one.
func backup(*rand.Rand, Config, *deployment.Deployment) Fault {
	return Fault{Kind: "backup", Inject: func(ctx context.Context, s *site) (func(), error) {
		return nil, s.backup(ctx, filepath.Join(s.Dir, "backup"))
	}}
}

// backup retries until it succeeds. It restarts from the beginning if it cannot be resumed, as
// after a move of a source.
func (s *site) backup(ctx context.Context, folder string) error {
	return s.insist(ctx, "sluice backup", func(ctx context.Context) error {
		_, err := s.Sluice(ctx, s.withTables("backup", "--to", folder, "--nats", s.NATSURL)...)
		if err != nil && strings.Contains(err.Error(), "cannot be resumed") && strings.Contains(err.Error(), "delete it") {
			err = errors.Join(err, os.RemoveAll(folder))
		}
		if err != nil && strings.Contains(err.Error(), "has a complete backup") { // an earlier try, which failed behind it
			return nil
		}
		return err
	})
}

// recount recomputes today's counters.
func recount(*rand.Rand, Config, *deployment.Deployment) Fault {
	return command("recount", func(s *site) []string { return s.withTables("recount", time.Now().UTC().Format(time.DateOnly)) })
}

// migrateTTL sets a retention with which no row expires.
func migrateTTL(r *rand.Rand, _ Config, _ *deployment.Deployment) Fault {
	return Fault{Kind: "migrate-ttl", Inject: func(ctx context.Context, s *site) (func(), error) {
		return nil, s.keep(ctx, 30+r.IntN(400))
	}}
}

// keep sets the retention of rows and counters, in days.
func (s *site) keep(ctx context.Context, days int) error {
	text := fmt.Sprintf("%dd", days)
	return s.operate(ctx, s.withTables("migrate", "ttl", "--keep-records", text, "--keep-counts", text)...)
}

// rebuild recreates the tables in another database. The command compares it with the live one;
// then it is dropped, or when the command says so because it cannot resume an interrupted rebuild.
func rebuild(*rand.Rand, Config, *deployment.Deployment) Fault {
	return Fault{Kind: "rebuild", Inject: func(ctx context.Context, s *site) (func(), error) {
		drop := func(ctx context.Context) error { return s.Exec(ctx, "DROP DATABASE flow_rebuild") }
		if err := s.insist(ctx, "sluice rebuild", func(ctx context.Context) error {
			_, err := s.Sluice(ctx, s.withTables(append([]string{"rebuild", "--into", "flow_rebuild", "--nats", s.NATSURL}, s.window()...)...)...)
			if err != nil && strings.Contains(err.Error(), "drop that database and restart") {
				err = errors.Join(err, drop(ctx))
			}
			return err
		}); err != nil {
			return nil, err
		}
		return nil, s.insist(ctx, "drop the rebuilt database", drop)
	}}
}

// deadReplay adds a constraint that rejects every record of a source, so that they become dead
// letters. Then it drops the constraint and replays them.
func deadReplay(r *rand.Rand, _ Config, _ *deployment.Deployment) Fault {
	hold := between(r, time.Second, 4*time.Second)
	return Fault{Kind: "dead-replay", Target: people, Inject: func(ctx context.Context, s *site) (func(), error) {
		exec := func(what, sql string) error {
			return s.insist(ctx, what, func(ctx context.Context) error { return s.Exec(ctx, sql) })
		}
		for n := uint64(0); n == 0; {
			if err := exec("add a constraint", "ALTER TABLE flow.records ADD CONSTRAINT IF NOT EXISTS no_people CHECK source != '"+people+"'"); err != nil {
				return nil, err
			}
			refused := s.insist(ctx, "wait for dead letters", func(ctx context.Context) (err error) {
				if n, err = s.deadLetters(ctx); err == nil && n == 0 && !s.isHalted(ctx) {
					err = errors.New("no dead letters yet")
				}
				return err
			})
			deployment.Sleep(ctx, hold)
			if err := errors.Join(refused, exec("drop the constraint", "ALTER TABLE flow.records DROP CONSTRAINT IF EXISTS no_people")); err != nil {
				return nil, err
			}
		}
		return nil, s.replayLetters(ctx)
	}}
}

// replayLetters replays dead letters until none is left: blocks rejected by the constraint may
// add more meanwhile.
func (s *site) replayLetters(ctx context.Context) error {
	return s.insist(ctx, "replay dead letters", func(ctx context.Context) error {
		if _, err := s.Sluice(ctx, "dead", "replay", "--all", "--nats", s.NATSURL); err != nil {
			return err
		}
		n, err := s.deadLetters(ctx)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d dead letters are left", n)
		}
		return err
	})
}

func (s *site) deadLetters(ctx context.Context) (uint64, error) {
	js, err := s.JetStream()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	letters, err := js.Stream(ctx, "FLOW_DEAD")
	if err != nil {
		return 0, err
	}
	return letters.CachedInfo().State.Msgs, nil
}

// isHalted reports whether a lane is halted. A constraint halts it when it rejects a block
// whose rows an earlier attempt stored.
func (s *site) isHalted(ctx context.Context) bool {
	return slices.ContainsFunc(s.Of(deployment.Ingester), func(p *deployment.Process) bool {
		err := programtest.AnswersOK(ctx, "http://"+p.Ops+"/readyz")
		return err != nil && strings.Contains(err.Error(), "is halted")
	})
}

// forget removes all records of an ended instance.
func forget(r *rand.Rand, _ Config, _ *deployment.Deployment) Fault {
	which := r.IntN(1000)
	return Fault{Kind: "forget", Target: people, Inject: func(ctx context.Context, s *site) (func(), error) {
		l := s.ledgers[people]
		var instances []string
		err := s.insist(ctx, "choose an instance to forget", func(ctx context.Context) (err error) {
			if instances, err = instancesOf(l); err == nil && len(instances) == 0 {
				err = errors.New("no ended instance yet")
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		instance := instances[which%len(instances)]
		l.forget(instance)
		args := s.withTables("forget", "--instance", instance, "--source", people, "--yes", "--by", "chaos", "--history", s.cfg.history().String(), "--wait", (s.patience() / 2).String())
		return nil, s.insist(ctx, "forget "+instance, func(ctx context.Context) error {
			out, err := s.Sluice(ctx, append(append(args, s.window()...), "--nats", s.NATSURL)...)
			if err == nil {
				s.journal.note("forget %s: %s", instance, out)
			}
			if err != nil && strings.Contains(err.Error(), `"done":"`) { // carried out; the wait for the log failed behind it
				deployment.Sleep(ctx, s.patience()/2)
				return nil
			}
			return err
		})
	}}
}

// twoSources only waits: the twins always post.
func twoSources(*rand.Rand, Config, *deployment.Deployment) Fault {
	return Fault{Kind: "two-sources", Inject: func(ctx context.Context, s *site) (func(), error) {
		return nil, s.insist(ctx, "wait until both twins have posted", func(ctx context.Context) error {
			for _, source := range twins {
				if s.ledgers[source].written() == 0 {
					return fmt.Errorf("%s has posted nothing", source)
				}
			}
			return nil
		})
	}}
}

// clockDays steps the clock of an api or an ingester by days, forward or back: by more than a
// record may be ahead of the clock, and by more than a retention.
func clockDays(r *rand.Rand, _ Config, d *deployment.Deployment) Fault {
	machine := pick(r, slices.Concat(d.Of(deployment.API), d.Of(deployment.Ingester))).Name
	by := time.Duration(8+r.IntN(500)) * 24 * time.Hour
	if r.IntN(2) == 0 {
		by = -by
	}
	f := stepClock(machine, by, between(r, 2*time.Second, 20*time.Second))
	f.Kind = "clock-days"
	return f
}

// serverLinks returns the names of all links to NATS and to the engine.
func serverLinks(d *deployment.Deployment) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(d.Links)) {
		if strings.HasSuffix(name, deployment.ToNATS) || strings.HasSuffix(name, deployment.ToEngine) {
			names = append(names, name)
		}
	}
	return names
}
