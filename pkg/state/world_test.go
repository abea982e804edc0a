package state_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/api"
	"sluice/pkg/broker"
	"sluice/pkg/change"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/state"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// world is a deployment on a real server: the stream, the bucket, an applier and the audit rows.
type world struct {
	t      *testing.T
	server *natstest.Server
	stream *stream.Stream
	bucket *flaky
	store  *state.Store
	audits *audits
	*state.Applier
	reg *prometheus.Registry
}

func open(t *testing.T) *world {
	t.Helper()
	return openOn(t, natstest.Start(t))
}

// openOn opens new clients on a server, as another process would.
func openOn(t *testing.T, server *natstest.Server) *world {
	t.Helper()
	w := &world{t: t, server: server, audits: &audits{rows: map[string][]change.Audit{}}, reg: prometheus.NewRegistry()}
	quiet := slog.New(slog.DiscardHandler)
	var err error
	w.stream, err = stream.Open(t.Context(), server.Connect(), stream.Config{MaxBytes: 64 << 20}, quiet, w.reg)
	fatal.When(t, err != nil, "open the stream: %v", err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = w.stream.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	bucket, err := w.stream.State()
	fatal.When(t, err != nil, "open the bucket: %v", err)
	w.bucket = &flaky{KeyValue: bucket}
	w.store = state.New(w.open)
	w.Applier = state.NewApplier(w.store, w.reg)
	return w
}

// open returns the bucket, with its faults.
func (w *world) open() (broker.KeyValue, error) { return w.bucket, nil }

func (w *world) publish(changes ...*change.Change) {
	w.t.Helper()
	p := stream.NewPublisher(w.stream)
	for _, c := range changes {
		if _, _, err := p.PublishChange(w.t.Context(), c); err != nil {
			w.t.Errorf("publish %s: %v", c.Kind, err)
		}
	}
}

func (w *world) messages() []flow.Message {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	reader, err := w.stream.OpenLane(ctx, 0, 1, 1<<20)
	fatal.If(w.t, err)
	defer reader.Close()
	nc := w.server.Connect()
	defer nc.Close()
	js, err := jetstream.New(nc)
	fatal.If(w.t, err)
	lane, err := js.Stream(ctx, stream.LaneName(0))
	fatal.If(w.t, err)
	var all []flow.Message
	for last := lane.CachedInfo().State.LastSeq; len(all) == 0 || all[len(all)-1].Seq < last; {
		e, err := reader.Next(ctx)
		fatal.If(w.t, err)
		all = append(all, e.Messages...)
	}
	return all
}

// always is a claim that is never lost.
func always(context.Context) error { return nil }

// apply acts as the ingester: it applies and records the messages, retrying each after an error.
// It returns the dead-lettered sequences.
func (w *world) apply(messages ...flow.Message) (dead []uint64) {
	w.t.Helper()
	dead = w.applyOnly(messages...)
	auditor := state.NewAuditor(w.audits)
	for start := time.Now(); time.Since(start) < 20*time.Second; time.Sleep(10 * time.Millisecond) {
		if auditor.WriteDown(w.t.Context(), messages) == nil {
			return dead
		}
	}
	w.t.Fatal("messages are never written down")
	return nil
}

// applyOnly applies one by one after a message is refused.
func (w *world) applyOnly(messages ...flow.Message) (dead []uint64) {
	w.t.Helper()
	for start := time.Now(); time.Since(start) < 20*time.Second; time.Sleep(10 * time.Millisecond) {
		err := w.Apply(w.t.Context(), messages, always)
		var refused *flow.StoreError
		switch {
		case err == nil:
			return nil
		case !errors.As(err, &refused) || refused.Class != flow.ClassPoison:
			continue
		case len(messages) == 1:
			return []uint64{messages[0].Seq}
		}
		for _, m := range messages {
			dead = append(dead, w.applyOnly(m)...)
		}
		return dead
	}
	w.t.Fatalf("messages %d to %d are never applied", messages[0].Seq, messages[len(messages)-1].Seq)
	return nil
}

// documents are all entries of the store: the document by target name, or a dagger for a
// tombstone.
func (w *world) documents() map[string]string {
	w.t.Helper()
	all := map[string]string{}
	for e, err := range w.store.Entries(w.t.Context(), ">") {
		fatal.If(w.t, err)
		name, doc := e.Target.User+e.Target.Table+"/"+e.Target.Field, string(e.Doc)
		if e.Deleted {
			doc = "†"
		}
		all[strings.TrimSuffix(name, "/")] = doc
	}
	return all
}

func (w *world) wantDocuments(want map[string]string) {
	w.t.Helper()
	expect.Equal(w.t, "documents", want, w.documents())
}

// revisions are the revisions of all entries: each write changes one.
func (w *world) revisions() map[string]uint64 {
	w.t.Helper()
	all := map[string]uint64{}
	watch, err := w.bucket.Watch(w.t.Context(), ">", false)
	fatal.If(w.t, err)
	defer func() { _ = watch.Stop() }()
	for kv := range watch.Updates() {
		if kv == nil {
			return all
		}
		all[kv.Key()] = kv.Revision()
	}
	w.t.Fatal("the watch ended")
	return nil
}

func patch(t *testing.T, user, body string) *change.Change {
	t.Helper()
	secrets := &change.Secrets{Key: []byte(strings.Repeat("k", 32))}
	c, _, err := change.NewUserPatch(t.Context(), user, false, []byte(body), secrets)
	fatal.If(t, err)
	return c
}

func put(t *testing.T, table, field, body string) *change.Change {
	t.Helper()
	c, _, err := change.NewFieldPut(table, field, "ann", []byte(body))
	fatal.If(t, err)
	return c
}

func remove(t *testing.T, table, field string, version uint64) *change.Change {
	t.Helper()
	c, err := change.NewFieldDelete(table, field, "ann", version)
	fatal.If(t, err)
	return c
}

// audits keeps rows by token, as the warehouse does, with injected faults.
type audits struct {
	mu   sync.Mutex
	rows map[string][]change.Audit
	fail faults
}

func (a *audits) InsertChanges(_ context.Context, token string, rows []change.Audit) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fail.around(func() error {
		if was, ok := a.rows[token]; ok && !cmp.Equal(was, rows) {
			panic("a token was used for other rows")
		}
		a.rows[token] = slices.Clone(rows)
		return nil
	})
}

// all are the rows by sequence; a duplicate appears twice.
func (a *audits) all() (rows []change.Audit) {
	for _, token := range slices.Sorted(maps.Keys(a.rows)) {
		rows = append(rows, a.rows[token]...)
	}
	slices.SortFunc(rows, func(x, y change.Audit) int { return int(x.Seq) - int(y.Seq) })
	return rows
}

// faults are the outcomes of the next calls, in order; later calls succeed.
type faults []fault

type fault int

const (
	works  fault = iota
	before       // fails, not applied
	after        // fails, but applied
)

var errFault = errors.New("the bucket did not answer")

func (f *faults) around(do func() error) error {
	next := works
	if len(*f) > 0 {
		next, *f = (*f)[0], (*f)[1:]
	}
	if next == before {
		return errFault
	}
	err := do()
	if next == after {
		return errors.Join(err, errFault)
	}
	return err
}

// flaky is the real bucket with faults in its writes.
type flaky struct {
	broker.KeyValue
	mu     sync.Mutex
	fail   faults
	writes int
	first  func() // runs once, before the next write
}

func (f *flaky) begin() {
	f.writes++
	if first := f.first; first != nil {
		f.first = nil
		first()
	}
}

func (f *flaky) Create(ctx context.Context, key string, value []byte) (rev uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begin()
	err = f.fail.around(func() error { rev, err = f.KeyValue.Create(ctx, key, value); return err })
	return rev, err
}

func (f *flaky) Update(ctx context.Context, key string, value []byte, revision uint64) (rev uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begin()
	err = f.fail.around(func() error { rev, err = f.KeyValue.Update(ctx, key, value, revision); return err })
	return rev, err
}

// The wiring of cmd compiles.
var (
	_ api.State      = (*state.Store)(nil)
	_ ingest.Changes = (*state.Applier)(nil)
	_ ingest.Audits  = (*state.Auditor)(nil)
	_ state.Audits   = (*warehouse.DB)(nil)
)
