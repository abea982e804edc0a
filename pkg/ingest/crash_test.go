package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/record"
)

// outcome is all that an ingester leaves behind.
type outcome struct {
	Table, View map[place]int
	Dead        map[place]string
	Bodies      map[place]string
	Changes     []uint64
	Applied     uint64 // the last one, by the checkpoint of changes
	Written     map[uint64]bool
	Done        uint64
	LastRow     uint64
	Totals      flow.Totals
	Recount     []string // days; compared only where wanted: a cut that others may have overlapped leaves its days
	Open        bool     // a claim is left
	Broken      []string
}

func (w *world) outcome() outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	written := w.written
	if len(written) == 0 {
		written = nil
	}
	return outcome{
		Table: w.table, View: w.view, Dead: w.dead, Bodies: w.bodies, Changes: w.changes, Applied: w.applying.Done, Written: written,
		Done: w.state.Done, LastRow: w.state.LastRow, Totals: w.state.Totals, Recount: daysOf(w.state.Recount),
		Open: w.state.Claim != nil, Broken: w.broken,
	}
}

func daysOf(doubts []flow.Doubt) (days []string) {
	for _, d := range doubts {
		days = append(days, d.Day)
	}
	return slices.Compact(days)
}

// start runs an ingester in a process of this name until it is stopped or crashes.
func (w *world) start(t *testing.T, name string, cfg ingest.Config) (p *process, stop func() error) {
	cfg.Owner = name
	p = &process{world: w, name: name}
	_, stop = p.start(t, cfg, p.deps(), prometheus.NewRegistry())
	return p, stop
}

// startIngester is start with access to the ingester and its Deps.
func (w *world) startIngester(t *testing.T, cfg ingest.Config, change ...func(*ingest.Deps)) (*ingest.Ingester, func() error) {
	p := &process{world: w, name: "a"}
	deps := p.deps()
	for _, c := range change {
		c(&deps)
	}
	return p.start(t, cfg, deps, prometheus.NewRegistry())
}

// starts numbers processes that share a name.
var starts atomic.Int64

func (p *process) start(t *testing.T, cfg ingest.Config, deps ingest.Deps, reg prometheus.Registerer) (*ingest.Ingester, func() error) {
	if cfg.Owner == "" {
		cfg.Owner = fmt.Sprint(p.name, "-", starts.Add(1)) // a new owner after a crash
	}
	ctx, cancel := context.WithCancel(t.Context())
	p.crash = cancel
	i := ingest.New(cfg, deps, slog.New(slog.DiscardHandler), reg)
	ended := make(chan error, 1)
	go func() {
		err := i.Run(ctx)
		p.mu.Lock()
		p.ended = true
		p.mu.Unlock()
		ended <- err
	}()
	return i, func() error {
		cancel()
		return <-ended
	}
}

// settle runs processes until all published messages are done or time is up; it replaces each that
// crashes or is paused. It then waits for paused processes and delayed calls, and stops all.
func (w *world) settle(t *testing.T, cfg ingest.Config) {
	var asleep []func() error
	for n := range 40 {
		p, stop := w.start(t, fmt.Sprintf("ingester-%d", n), cfg)
		for range 40_000 {
			time.Sleep(500 * time.Millisecond)
			w.mu.Lock()
			done := w.state.Done == uint64(len(w.messages)) && w.state.Claim == nil && w.applying.Done == w.lastChange()
			over := done || p.gone || p.paused || p.ended
			w.mu.Unlock()
			if over {
				break
			}
		}
		w.mu.Lock()
		gone, others := p.gone, p.paused || p.ended
		w.mu.Unlock()
		if others && !gone { // the paused process, or a resumed one that took its lane
			asleep = append(asleep, stop)
			continue
		}
		if !gone { // no replacement: it resumes beside the last process
			w.underway.Wait()
			for quiet := 0; len(asleep) > 0 && quiet < 4; quiet++ {
				time.Sleep(30 * time.Second)
				w.mu.Lock()
				if w.sleeping > 0 {
					quiet = 0
				}
				w.mu.Unlock()
			}
		}
		if err := stop(); err != nil && !gone && (len(asleep) == 0 || !errors.Is(err, flow.ErrNotOwner)) {
			t.Errorf("Run: %v", err)
		}
		if !gone {
			break
		}
	}
	for _, stop := range asleep {
		if err := stop(); err != nil && !errors.Is(err, flow.ErrNotOwner) {
			t.Errorf("Run of a process that was paused: %v", err)
		}
	}
	w.underway.Wait()
}

func (w *world) lastChange() (seq uint64) {
	for _, e := range w.messages {
		if strings.Contains(e.Topic, ".change.") {
			seq = e.Seq
		}
	}
	return seq
}

func rec(id string) string { return `{"id":"` + id + `","valueType":"JOB","timestamp":946684800000}` }

func message(records ...string) flow.Message {
	return flow.Message{
		Topic: "flow.0.record", Received: time.Now(), Records: len(records),
		Body: []byte("[" + strings.Join(records, ",") + "]"),
	}
}

// scene has every kind of message: good and bad records, records that only the warehouse rejects,
// changes, one of them bad, and broken and foreign messages.
func scene() (*world, outcome) {
	w := newWorld()
	w.refuse = func(c *record.Columns, i int) bool { return strings.HasPrefix(c.ID(i), "poison") }
	w.publish(
		message(rec("1-1"), rec("1-2"), rec("1-3")),
		message(rec("1-4"), `"no record"`, rec("1-6"), `{"id":"1-7","key":"no number"}`),
		flow.Message{Topic: "flow.0.change.user.YQ", Received: time.Now(), Body: []byte("{}")},
		message(rec("1-8"), rec("poison-1"), rec("1-9"), rec("1-10"), rec("1-11"), rec("poison-2")),
		flow.Message{Topic: "flow.0.record", Received: time.Now(), Body: []byte("[broken")},
		flow.Message{Topic: "flow.0.other", Received: time.Now(), Body: []byte("?")},
		flow.Message{Topic: "flow.0.change.field.YQ.YQ", Received: time.Now(), Body: []byte("never")},
		flow.Message{Topic: "flow.0.change.field.YQ.YQ", Received: time.Now(), Body: []byte("{}")},
		message(rec("1-12"), rec("1-13")),
		message(rec("1-14")),
		flow.Message{Topic: "flow.0.change.user.YQ", Received: time.Now(), Body: []byte("{}")},
	)
	rows := map[place]int{}
	for seq, indexes := range map[uint64][]int{1: {0, 1, 2}, 2: {0, 2}, 4: {0, 2, 3, 4}, 9: {0, 1}, 10: {0}} {
		for _, i := range indexes {
			rows[place{seq, i}] = 1
		}
	}
	return w, outcome{
		Table: rows, View: rows,
		Dead: map[place]string{
			{2, 1}: "not_an_object", {2, 3}: "not_an_integer",
			{4, 1}: "refused", {4, 5}: "refused",
			{5, -1}: "invalid_json", {6, -1}: "unknown_topic", {7, -1}: "refused",
		},
		Bodies: map[place]string{
			{2, 1}: `"no record"`, {2, 3}: `{"id":"1-7","key":"no number"}`,
			{4, 1}: rec("poison-1"), {4, 5}: rec("poison-2"),
			{5, -1}: "[broken", {6, -1}: "?", {7, -1}: "never",
		},
		Changes: []uint64{3, 8, 11}, Applied: 11, Written: map[uint64]bool{3: true, 7: true, 8: true, 11: true}, Done: 11, LastRow: 10,
		// The broken message and the unknown one count as one record each.
		Totals: flow.Totals{Read: 18, Stored: 12, DeadLettered: 6},
	}
}

// small makes several blocks of a scene.
var small = ingest.Config{MaxRows: 8, MinPause: time.Millisecond, MaxAge: 2 * time.Millisecond}

// atOnce is small; full blocks are inserted as two parallel pieces.
var atOnce = ingest.Config{MaxRows: 8, MinPause: time.Millisecond, MaxAge: 2 * time.Millisecond, Together: 2, PieceBytes: 1}

// ways are how a scene inserts its blocks, and which of two parallel pieces reaches the warehouse
// first.
var ways = []struct {
	name   string
	cfg    ingest.Config
	before func(op string)
}{
	{"one after the other", small, func(string) {}},
	{"at once, the first piece first", atOnce, func(op string) {
		if isInsert(op) && !isFirstPiece(op) {
			time.Sleep(time.Millisecond)
		}
	}},
	{"at once, the last piece first", atOnce, func(op string) {
		if isInsert(op) && isFirstPiece(op) {
			time.Sleep(time.Millisecond)
		}
	}},
}

func isInsert(op string) bool { return strings.HasPrefix(op, "insert ") }

func isFirstPiece(op string) bool { return strings.HasSuffix(op, "#0") }

// everyStep runs a scene once without faults and then with each fault in each step.
func everyStep(t *testing.T, atLeast int, run func(t *testing.T, fault func(step int, op string) fault) (steps int)) {
	steps := 0
	t.Run("nothing fails", func(t *testing.T) { steps = run(t, func(int, string) fault { return none }) })
	fatal.When(t, steps < atLeast, "the scene has only %d steps", steps)
	for f := none + 1; f < faults; f++ {
		for step := 1; step <= steps; step++ {
			t.Run(fmt.Sprintf("step %d %v", step, f), func(t *testing.T) {
				run(t, func(at int, _ string) fault {
					if at == step {
						return f
					}
					return none
				})
			})
		}
	}
}

// manySteps runs a scene with faults in many steps, drawn by seeds.
func manySteps(t *testing.T, seeds uint64, run func(t *testing.T, seed uint64, fault func(int, string) fault)) {
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			left := 12 // crashes and pauses, so that the run ends
			run(t, seed, func(int, string) fault {
				if r.IntN(8) > 0 {
					return none
				}
				f := fault(1 + r.IntN(int(faults)-1))
				if f == crashedFirst || f == crashedAfter || f == paused {
					if left--; left < 0 {
						return failed
					}
				}
				return f
			})
		})
	}
}

// scenes: all kinds of messages; records resent in other chunks; a block of many months.
var scenes = []struct {
	name    string
	atLeast int // steps
	make    func() (*world, outcome)
}{
	{"every kind of message", 40, scene},
	{"records that are resent", 40, sentAgain},
	{"a block of many months", 20, months},
	{"records of a forgotten instance", 20, forgotten},
	{"requests that were routed by an older list", 20, moved},
}

func TestEveryStepMayFailInEveryWay(t *testing.T) {
	for _, scene := range scenes {
		for _, way := range ways {
			t.Run(scene.name+", "+way.name, func(t *testing.T) {
				t.Parallel()
				everyStep(t, scene.atLeast, func(t *testing.T, fault func(int, string) fault) (steps int) {
					synctest.Test(t, func(t *testing.T) {
						w, want := scene.make()
						w.before, w.fault = way.before, fault
						w.settle(t, way.cfg)
						compare(t, w, want)
						steps = w.step
					})
					return steps
				})
			})
		}
	}
}

// TestManyStepsMayFail: faults in an eighth of all steps.
func TestManyStepsMayFail(t *testing.T) {
	for _, scene := range scenes {
		t.Run(scene.name, func(t *testing.T) {
			t.Parallel()
			manySteps(t, 300, func(t *testing.T, seed uint64, fault func(int, string) fault) {
				synctest.Test(t, func(t *testing.T) {
					w, want := scene.make()
					way := ways[seed%3]
					w.before, w.fault = way.before, fault
					w.settle(t, way.cfg)
					compare(t, w, want)
				})
			})
		})
	}
}

func compare(t *testing.T, w *world, want outcome) {
	t.Helper()
	got := w.outcome()
	if want.Recount == nil {
		got.Recount = nil
	}
	if !reflect.DeepEqual(want, got) {
		t.Errorf("outcome (-want +got):\n%s\nsteps:\n%s", cmp.Diff(want, got), strings.Join(w.history, "\n"))
	}
}
