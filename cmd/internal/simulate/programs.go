package simulate

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/ingest"
	"sluice/pkg/lease"
	"sluice/pkg/state"
	"sluice/pkg/stream"
)

// program is the common part of api, ingester and operator.
type program struct {
	*process
	ctx    context.Context
	stream *stream.Stream
	ended  chan struct{}
}

func (h *history) start(name string, run func(context.Context, *program) error) *program {
	h.instances++
	p := &process{
		driver: h.driver, name: name + "-" + strconv.Itoa(h.instances), connected: true, losses: map[*func()]struct{}{},
		seed: h.driver.random.Uint64(), drawn: map[uint64]uint64{}, skew: h.clock(),
	}
	g := &program{process: p, ended: make(chan struct{})}
	g.ctx, p.cancel = context.WithCancel(context.Background())
	g.stream = stream.NewOver(&connection{p, h.server}, stream.Config{
		MaxBytes: 1 << 20, DuplicateWindow: duplicateWindow, RepeatWindow: h.window, Poll: 5 * time.Second, Now: p.now, Random: p.uint64,
	}, h.log.With("process", p.name), prometheus.NewRegistry())
	h.running.Go(func() {
		defer close(g.ended)
		if err := run(g.ctx, g); err != nil && g.ctx.Err() == nil {
			h.fail("%s ended: %v", p.name, err)
		}
	})
	return g
}

// duplicateWindow is NATS's duplicate window of a lane.
const duplicateWindow = 45 * time.Second

type api struct {
	*program
	publisher *stream.Publisher
}

func (h *history) startAPI(i int) {
	a := &api{}
	a.program = h.start("api"+strconv.Itoa(i), func(ctx context.Context, g *program) error { return g.stream.Run(ctx) })
	a.publisher = stream.NewPublisher(a.stream)
	h.setAPI(i, a)
}

func (h *history) setAPI(i int, a *api) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.apis[i] = a
}

// api returns an api, nil when it is down.
func (h *history) api(i int) *api {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.apis[i]
}

type ingester struct {
	*program
	real atomic.Pointer[ingest.Ingester]
}

// wiring wires an ingester as cmd/internal/run does.
type wiring struct{ *stream.Stream }

func (w wiring) Open(ctx context.Context, lane int, from uint64) (ingest.Reader, error) {
	r, err := w.OpenLane(ctx, lane, from, 0)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (w wiring) OpenChanges(ctx context.Context, from uint64) (ingest.Reader, error) {
	r, err := w.Stream.OpenChanges(ctx, from)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (h *history) startIngester(i int) {
	if h.held || h.ingesters[i] != nil {
		return
	}
	inserts := 1 + h.driver.random.IntN(2)
	this := &ingester{}
	h.ingesters[i] = this
	this.program = h.start("ingester"+strconv.Itoa(i), func(ctx context.Context, g *program) error {
		log, reg := h.log.With("process", g.name), prometheus.NewRegistry()
		db := client{g.process, h.warehouse}
		leases := lease.New(lease.Config{Instance: g.name, Bucket: g.stream.Leases, TTL: stream.LeaseTTL, Lanes: g.stream.LaneNumbers}, log, reg)
		real := ingest.New(ingest.Config{
			Owner: g.name, KnownBytes: 1 << 16, RepeatBytes: 1 << 20, RepeatWindow: h.window, Together: inserts, MaxRows: 40, PieceBytes: 1 << 10,
			Now: g.now, Random: g.uint64,
		}, ingest.Deps{
			Leases: leases, Lanes: wiring{g.stream}, States: stream.NewLaneStates(g.stream), Tables: db, Index: db,
			DeadLetters: stream.NewDeadLetters(g.stream), Forgets: g.stream, Expiry: expiry{db, g.stream},
			Audits: state.NewAuditor(db), Changes: state.NewApplier(state.New(g.stream.State), reg), ChangeStates: stream.NewChangeStates(g.stream),
		}, log, reg)
		this.real.Store(real)
		purger := stream.NewPurger(g.stream, stream.PurgeConfig{History: time.Second, Every: 20 * time.Second})
		var all sync.WaitGroup
		defer all.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		all.Go(func() { _ = g.stream.Run(ctx) })
		all.Go(func() { _ = purger.Run(ctx) })
		if err := g.stream.Opened(ctx); err != nil {
			return nil
		}
		return real.Run(ctx)
	})
}
