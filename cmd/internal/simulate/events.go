package simulate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// disturb plans faults of processes and servers.
func (h *history) disturb() {
	random := h.driver.random
	for range random.IntN(7) {
		after := time.Duration(random.Int64N(int64(h.busy)))
		lasting := time.Duration(1+random.IntN(40)) * time.Second
		i := random.IntN(2)
		name, do := h.disturbance(random.IntN(17), i, lasting)
		h.plan(after, name, do)
	}
}

// disturbance returns a fault of process i, or of a server.
func (h *history) disturbance(which, i int, lasting time.Duration) (name string, do func()) {
	switch which {
	case 0, 1:
		return "an ingester dies", func() { h.killIngester(i, lasting) }
	case 2:
		return "an ingester stops", func() { h.stopIngester(i, lasting) }
	case 3:
		return "an api dies", func() { h.killAPI(i, lasting) }
	case 4:
		return "an ingester freezes", func() { h.pause(h.ingesterProcess(i), lasting) }
	case 5:
		return "an api freezes", func() { h.pause(h.apiProcess(i), lasting) }
	case 6:
		return "a connection is lost", func() { h.cut(i, lasting) }
	case 7:
		return "the warehouse is down", func() {
			h.warehouse.down = true
			h.plan(lasting, "the warehouse is up", func() { h.warehouse.down = false })
		}
	case 8:
		return "full lanes", func() { h.fill(lasting) }
	case 9:
		return "tokens are forgotten", h.forgetTokens
	case 10:
		return "an api cannot publish", func() { h.stall(i, lasting) }
	case 11:
		return "the clock of the server steps", func() { h.stepClock(lasting) }
	case 13:
		return "the warehouse lacks memory", func() {
			h.warehouse.short = true
			h.saw("the warehouse lacks memory")
			h.plan(lasting, "the warehouse has memory", func() { h.warehouse.short = false })
		}
	case 14:
		return "a constraint is added", func() {
			h.warehouse.strict = true
			h.plan(lasting, "the constraint is dropped", func() { h.warehouse.strict = false })
		}
	case 15:
		return "a replica of the warehouse lags", func() {
			now := h.warehouse.clone()
			h.warehouse.lagging = &now
			h.plan(lasting, "the replica has caught up", func() { h.warehouse.lagging = nil })
		}
	case 12:
		return "replicas fall behind", func() {
			for _, l := range h.server.streams {
				l.behind = &following{l.last, time.Now().Add(lasting), time.Now().Add(min(lasting, formerLeader))}
			}
		}
	}
	return "a view rejects", func() {
		h.warehouse.refuses = true
		h.plan(lasting, "the view is fixed", func() { h.warehouse.refuses = false })
	}
}

// formerLeader is the maximum time for which a replaced leader answers: then it has detected the
// missing quorum.
const formerLeader = 8 * time.Second

func (h *history) apiProcess(i int) *process {
	if a := h.apis[i]; a != nil {
		return a.process
	}
	return nil
}

func (h *history) ingesterProcess(i int) *process {
	if g := h.ingesters[i]; g != nil {
		return g.process
	}
	return nil
}

func (h *history) pause(p *process, lasting time.Duration) {
	if p != nil {
		p.stands = time.Now().Add(lasting)
		h.saw("a process freezes")
	}
}

func (h *history) stall(i int, lasting time.Duration) {
	if p := h.apiProcess(i); p != nil {
		p.stalls = time.Now().Add(min(lasting, 28*time.Second))
		h.saw("an api cannot publish")
	}
}

// forgetTokens adds parts of other clients until all tokens are forgotten. It waits for
// inserts in flight, and for those that an ingester makes within a minute after it counted
// parts: half of the window covers them.
func (h *history) forgetTokens() {
	if h.isInserting() || time.Since(h.warehouse.counted) < time.Minute {
		h.plan(time.Second, "tokens are forgotten", h.forgetTokens)
		return
	}
	h.warehouse.age(window + 1)
	for lane := range h.lanes {
		if h.state(lane).Claim != nil {
			h.saw("tokens of an open claim expire")
		}
	}
}

func (h *history) isInserting() bool {
	return slices.ContainsFunc(h.parked, func(c *call) bool { return strings.HasPrefix(c.name, "insert ") && !c.done })
}

// stepClock steps the server's clock. A step adds at most 30 s of stream time; together they
// must be at most a quarter of the window, because an entry is void after half of it.
func (h *history) stepClock(lasting time.Duration) {
	if time.Duration(h.steps+1)*flow.MaxStep > h.window/4 {
		return
	}
	h.steps++
	h.saw("the clock of the server steps")
	h.server.skew += 10 * (lasting - 15*time.Second)
}

func (h *history) killIngester(i int, lasting time.Duration) {
	g := h.ingesters[i]
	if g == nil {
		return
	}
	h.ingesters[i] = nil
	g.kill()
	h.saw("an ingester dies")
	if h.driver.random.IntN(4) == 0 {
		h.forgetTokens()
	}
	h.plan(lasting, "an ingester starts", func() { h.startIngester(i) })
}

func (h *history) stopIngester(i int, lasting time.Duration) {
	g := h.ingesters[i]
	if g == nil {
		return
	}
	h.ingesters[i] = nil
	g.cancel()
	h.saw("an ingester stops")
	h.plan(lasting, "an ingester starts", func() { h.startIngester(i) })
}

func (h *history) killAPI(i int, lasting time.Duration) {
	a := h.apis[i]
	if a == nil {
		return
	}
	h.setAPI(i, nil)
	a.kill()
	h.saw("an api dies")
	h.plan(lasting, "an api starts", func() { h.startAPI(i) })
}

func (h *history) cut(i int, lasting time.Duration) {
	p := h.apiProcess(i)
	if h.driver.random.IntN(2) == 0 {
		p = h.ingesterProcess(i)
	}
	if p == nil || !p.connected {
		return
	}
	h.saw("a connection is lost")
	p.setConnected(false)
	h.plan(lasting/4, "a connection is back", func() { p.setConnected(true) })
}

func (h *history) fill(lasting time.Duration) {
	h.setFull(true)
	h.saw("full lanes")
	h.plan(lasting, "lanes have room", func() { h.setFull(false) })
}

func (h *history) setFull(full bool) {
	for lane := range h.lanes {
		h.server.streams[stream.LaneName(lane)].full = full
	}
}

// operate moves sources to other lanes and back, until every source has lanes.
func (h *history) operate(clients *sync.WaitGroup) {
	moves := 1 + h.driver.random.IntN(2)
	pause := 5*time.Second + time.Duration(h.driver.random.Int64N(int64(30*time.Second)))
	to := [][]int{{0}, {0, 1}}
	clients.Add(1)
	h.operator("operator", func(ctx context.Context, g *program) error {
		defer clients.Done()
		watch, stop := context.WithCancel(ctx)
		defer stop()
		h.running.Go(func() { _ = g.stream.Run(watch) })
		if err := g.stream.Opened(ctx); err != nil {
			return nil
		}
		for n := range moves {
			source := fmt.Sprintf("source-%d", n%3)
			for _, lanes := range to {
				if !sleep(ctx, pause) {
					return nil
				}
				for i := range h.apis { // its messages by the old list land behind the move marker
					if g.uint64()%2 == 0 {
						h.plan(time.Duration(g.uint64()%uint64(10*time.Second)), "an api cannot publish", func() { h.stall(i, 28*time.Second) })
					}
				}
				limited, cancel := context.WithTimeout(ctx, 3*time.Minute)
				err := g.stream.Spread(limited, stream.Spreading{Source: source, Lanes: lanes})
				cancel()
				h.saw("a source is moved: " + map[bool]string{true: "done", false: "abandoned"}[err == nil])
				for err != nil && ctx.Err() == nil {
					if err = g.stream.Stay(ctx, source); err != nil {
						sleep(ctx, time.Second)
					}
				}
			}
		}
		return nil
	})
}

func (h *history) operator(name string, run func(context.Context, *program) error) {
	h.operators = append(h.operators, h.start(name, run))
}
