package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/broker"
	"sluice/pkg/expect"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/lease"
	"sluice/pkg/record"
	"sluice/pkg/stream"
)

// Sizes of the simulation, and step times of a cluster whose NATS syncs three copies and whose
// ClickHouse waits for a quorum.
const (
	manyLanes     = 1000
	manyIngesters = 20
	kvTime        = 2 * time.Millisecond   // a write to a key-value bucket
	insertTime    = 150 * time.Millisecond // an insert, with its views
	entryEvery    = 3 * time.Second        // interval of a lane's entries
)

// TestAThousandLanes simulates a thousand lanes and twenty ingesters in virtual time. Leases and
// ingester are real; NATS and ClickHouse are the fakes of this package. One ingester dies, one is
// cut off from NATS and returns, one stops. No lane ever has two owners; each has one again in
// time. Lanes are balanced again, and every record is stored once.
//
// docs/scaling.md has its figures: go test ./pkg/ingest -run AThousandLanes -v
func TestAThousandLanes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, manyLanes)
		for i := range manyIngesters {
			f.join(fmt.Sprintf("i%02d", i))
		}
		f.report("twenty ingesters have begun", f.untilEven(30*time.Second), 10*time.Second)
		publishing, stop := context.WithCancel(t.Context())
		var published sync.WaitGroup
		published.Go(func() { f.publish(publishing) })

		time.Sleep(10 * time.Second)
		f.report("one has died", f.untilOwned(func() { f.kill("i03") }), 15*time.Second)
		f.report("and they share evenly", f.untilEven(30*time.Second), 15*time.Second)

		f.report("one is cut off from NATS", f.untilOwned(func() { f.cut("i07", true) }), 15*time.Second)
		f.cut("i07", false)
		f.report("it is back, and they share evenly", f.untilEven(60*time.Second), 45*time.Second)

		f.report("one has stopped", f.untilOwned(func() { f.stop("i11") }), 8*time.Second)
		f.report("and they share evenly", f.untilEven(30*time.Second), 15*time.Second)

		stop()
		published.Wait()
		time.Sleep(10 * time.Second)
		f.end()
		f.settled()
	})
}

type fleet struct {
	t      *testing.T
	began  time.Time
	lanes  []*world
	leases *leaseBucket

	mu        sync.Mutex
	ingesters map[string]*ingester
	on        map[int]string    // the live owner of each lane
	left      map[int]time.Time // when its last owner left
	longest   time.Duration     // maximum time that a lane had no owner
}

type ingester struct {
	processes []*process // of each lane
	bucket    *ownBucket
	cancel    context.CancelFunc
	ended     chan error
}

func newFleet(t *testing.T, lanes int) *fleet {
	f := &fleet{t: t, began: time.Now(), ingesters: map[string]*ingester{}, on: map[int]string{}, left: map[int]time.Time{},
		leases: &leaseBucket{entries: map[string]leaseEntry{}, watchers: map[chan jetstream.KeyValueEntry]bool{}}}
	for n := range lanes {
		w := newWorld()
		w.identity, w.created = fmt.Sprintf("FLOW_%d@1", n), 1
		w.before = func(op string) {
			switch {
			case strings.HasPrefix(op, "swap"):
				time.Sleep(kvTime)
			case strings.HasPrefix(op, "insert"):
				time.Sleep(insertTime)
			}
		}
		f.lanes = append(f.lanes, w)
		f.left[n] = f.began
	}
	return f
}

// publish gives every lane an entry at intervals, each at its own time.
func (f *fleet) publish(ctx context.Context) {
	var all sync.WaitGroup
	for n, w := range f.lanes {
		all.Go(func() {
			pause := time.NewTimer(rand.N(entryEvery))
			for i := 0; ; i++ {
				select {
				case <-ctx.Done():
					return
				case <-pause.C:
				}
				m := message(rec(fmt.Sprintf("%d-%d", n, i)))
				m.Lane, m.Topic = n, fmt.Sprintf("flow.%d.record", n)
				w.publishEntry(flow.Entry{Lane: n, Topic: m.Topic, Body: m.Body, Messages: []flow.Message{m}})
				pause.Reset(entryEvery)
			}
		})
	}
	all.Wait()
}

func (f *fleet) numbers() []int {
	all := make([]int, len(f.lanes))
	for i := range all {
		all[i] = i
	}
	return all
}

func (f *fleet) join(name string) {
	ctx, cancel := context.WithCancel(f.t.Context())
	i := &ingester{bucket: &ownBucket{leaseBucket: f.leases, name: name}, cancel: cancel, ended: make(chan error, 1)}
	for _, w := range f.lanes {
		i.processes = append(i.processes, &process{world: w, name: name, crash: func() {}})
	}
	numbers, log, reg := f.numbers(), slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	leases := lease.New(lease.Config{
		Instance: name, TTL: stream.LeaseTTL, Lanes: func() []int { return numbers },
		Bucket: func() (broker.KeyValue, error) { return i.bucket, nil },
	}, log, reg)
	f.mu.Lock()
	f.ingesters[name] = i
	f.mu.Unlock()
	real := ingest.New(ingest.Config{Owner: name, KnownBytes: 1 << 16, RepeatBytes: 1 << 16}, ingest.Deps{
		Leases: watchedLeases{leases, f, name}, Lanes: everySource{i}, States: everyState{i},
		Tables: everyTable{i}, Index: everyTable{i}, DeadLetters: noDeadLetters{}, Forgets: noForgets{},
	}, log, reg)
	go func() { i.ended <- real.Run(ctx) }()
}

// kill ends an ingester: nothing it does has an effect afterwards.
func (f *fleet) kill(name string) {
	i := f.ingesters[name]
	i.bucket.setAway(true)
	for _, p := range i.processes {
		p.mu.Lock()
		p.gone = true
		p.mu.Unlock()
	}
	f.mu.Lock()
	delete(f.ingesters, name)
	for lane, owner := range f.on {
		if owner == name {
			delete(f.on, lane)
			f.left[lane] = time.Now()
		}
	}
	f.mu.Unlock()
	i.cancel()
}

// cut disconnects an ingester from the leases, in both directions.
func (f *fleet) cut(name string, away bool) { f.ingesters[name].bucket.setAway(away) }

// stop stops an ingester as SIGTERM does.
func (f *fleet) stop(name string) {
	f.mu.Lock()
	i := f.ingesters[name]
	delete(f.ingesters, name)
	f.mu.Unlock()
	i.cancel()
}

func (f *fleet) end() {
	f.mu.Lock()
	all := f.ingesters
	f.ingesters = map[string]*ingester{}
	f.mu.Unlock()
	for _, i := range all {
		i.cancel()
	}
	for name, i := range all {
		if err := <-i.ended; err != nil {
			f.t.Errorf("ingester %s ended: %v", name, err)
		}
	}
}

// enter records that an ingester begins to work on a lane.
func (f *fleet) enter(name string, lane int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if other, is := f.on[lane]; is {
		f.t.Errorf("%s: %s begins lane %d while %s works on it", time.Since(f.began), name, lane, other)
	}
	if f.ingesters[name] == nil {
		f.t.Errorf("%s: %s takes lane %d after its end", time.Since(f.began), name, lane)
	}
	f.on[lane] = name
	f.longest = max(f.longest, time.Since(f.left[lane]))
}

func (f *fleet) exit(name string, lane int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.on[lane] == name { // still alive
		delete(f.on, lane)
		f.left[lane] = time.Now()
	}
}

// untilOwned runs do and waits until every released lane has an owner again. It returns the
// longest time that a lane had none.
func (f *fleet) untilOwned(do func()) time.Duration {
	f.mu.Lock()
	f.longest = 0
	f.mu.Unlock()
	do()
	for range 300 {
		time.Sleep(100 * time.Millisecond)
		f.mu.Lock()
		longest, owned := f.longest, len(f.on)
		f.mu.Unlock()
		if longest > 0 && owned == manyLanes {
			return longest
		}
	}
	f.t.Errorf("%s: the lanes are not all owned after 30 s", time.Since(f.began))
	return 0
}

// untilEven waits until no two ingesters differ by two lanes, and returns the time taken.
func (f *fleet) untilEven(patience time.Duration) time.Duration {
	for began := time.Now(); time.Since(began) < patience; time.Sleep(100 * time.Millisecond) {
		f.mu.Lock()
		shares := map[string]int{}
		for name := range f.ingesters {
			shares[name] = 0
		}
		for _, name := range f.on {
			shares[name]++
		}
		owned := len(f.on)
		f.mu.Unlock()
		low, high := manyLanes, 0
		for _, n := range shares {
			low, high = min(low, n), max(high, n)
		}
		if owned == manyLanes && high-low <= 1 {
			return time.Since(began)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	shares := map[string]int{}
	for _, name := range f.on {
		shares[name]++
	}
	f.t.Errorf("%s: the lanes are not even after %s: %v", time.Since(f.began), patience, shares)
	return patience
}

func (f *fleet) report(what string, took, high time.Duration) {
	f.t.Logf("%6.1fs  %s: %.1fs", time.Since(f.began).Seconds(), what, took.Seconds())
	expect.Not(f.t, took > high, "%s: took %s, want at most %s", what, took, high)
}

// settled requires every record once in the table and in its views.
func (f *fleet) settled() {
	for n, w := range f.lanes {
		if len(w.broken) > 0 {
			f.t.Errorf("lane %d: %s", n, w.broken[0])
		}
		if w.state.Done != uint64(len(w.messages)) || len(w.table) != len(w.messages) || len(w.view) != len(w.messages) {
			f.t.Errorf("lane %d: %d messages done, %d rows and %d in views of %d messages", n, w.state.Done, len(w.table), len(w.view), len(w.messages))
		}
		for at, times := range w.table {
			if times != 1 || w.view[at] != 1 {
				f.t.Errorf("lane %d: the record of message %d is stored %d times and counted %d times", n, at.Seq, times, w.view[at])
			}
		}
	}
}

// watchedLeases reports lane owners to the fleet.
type watchedLeases struct {
	*lease.Leases
	fleet *fleet
	name  string
}

func (l watchedLeases) Run(ctx context.Context, work func(context.Context, int) error) error {
	return l.Leases.Run(ctx, func(ctx context.Context, lane int) error {
		l.fleet.enter(l.name, lane)
		defer l.fleet.exit(l.name, lane)
		return work(ctx, lane)
	})
}

type (
	everySource struct{ *ingester }
	everyState  struct{ *ingester }
	everyTable  struct{ *ingester }
)

func (s everySource) Open(ctx context.Context, lane int, from uint64) (ingest.Reader, error) {
	return source{s.processes[lane]}.Open(ctx, lane, from)
}
func (s everySource) OpenChanges(ctx context.Context, from uint64) (ingest.Reader, error) {
	return source{s.processes[0]}.OpenChanges(ctx, from)
}
func (s everySource) Heads(ctx context.Context, lane int, from, to uint64, do func(*flow.Entry) error) error {
	return source{s.processes[lane]}.Heads(ctx, lane, from, to, do)
}

func (s everySource) Revision(ctx context.Context, name string) (uint64, error) {
	return source{s.processes[0]}.Revision(ctx, name)
}

func (s everyState) at(lane int) states { return states{s.processes[lane], &s.processes[lane].state} }
func (s everyState) Read(ctx context.Context, lane int) (flow.LaneState, error) {
	return s.at(lane).Read(ctx, lane)
}
func (s everyState) CompareAndSwap(ctx context.Context, lane int, next flow.LaneState) (flow.LaneState, error) {
	return s.at(lane).CompareAndSwap(ctx, lane, next)
}

func (s everyTable) of(lane int) tables { return tables{s.processes[lane]} }
func (s everyTable) ofRows(c *record.Columns) tables {
	if len(c.Lane) == 0 {
		return s.of(0)
	}
	return s.of(int(c.Lane[0]))
}
func (s everyTable) Insert(ctx context.Context, b record.Block) error {
	return s.ofRows(b.Columns).Insert(ctx, b)
}
func (s everyTable) Visible(ctx context.Context, b record.Block, since time.Time) (rows, parts uint64, err error) {
	return s.ofRows(b.Columns).Visible(ctx, b, since)
}
func (s everyTable) Reaggregate(ctx context.Context, b record.Block) error {
	return s.ofRows(b.Columns).Reaggregate(ctx, b)
}
func (s everyTable) Clock(context.Context) (time.Time, error) { return time.Now(), nil }
func (s everyTable) Known(ctx context.Context, c *record.Columns, rows []int, found func(*flow.Identity)) error {
	return s.ofRows(c).Known(ctx, c, rows, found)
}
func (s everyTable) Marks(ctx context.Context, lane int, incarnation uint64, days []flow.SourceDay) (flow.Marks, error) {
	return s.of(lane).Marks(ctx, lane, incarnation, days)
}
func (s everyTable) StaleSourceDays(ctx context.Context, lane int, incarnation uint64) ([]flow.SourceDay, error) {
	return s.of(lane).StaleSourceDays(ctx, lane, incarnation)
}
func (s everyTable) Incarnations(ctx context.Context, lane int, above uint64) ([]flow.Incarnation, error) {
	return s.of(lane).Incarnations(ctx, lane, above)
}

func (s everyTable) Last(ctx context.Context, lane int, incarnation uint64) (of, seq uint64, err error) {
	return s.of(lane).Last(ctx, lane, incarnation)
}

type noDeadLetters struct{}

func (noDeadLetters) Publish(context.Context, flow.Dead) error {
	return errors.New("unexpected dead letter")
}
