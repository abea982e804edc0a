package simulate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// whenStored calls do once ClickHouse has ended the inserts of dead ingesters.
func (h *history) whenStored(do func()) {
	if h.inserting() {
		h.insist(time.Second, "an insert is under way", func() { h.whenStored(do) })
		return
	}
	do()
}

// resetLanes makes an operator reset lanes to their ends, and calls then.
func (h *history) resetLanes(lanes []int, ends map[int]uint64, then func()) {
	h.operator("operator", func(ctx context.Context, g *program) error {
		g.sure = true
		if !sleep(ctx, time.Duration(g.uint64()%uint64(20*time.Second))) {
			return nil
		}
		watch, stop := context.WithCancel(ctx)
		defer stop()
		h.running.Go(func() { _ = g.stream.Run(watch) })
		if err := g.stream.Opened(ctx); err != nil {
			return nil
		}
		states := stream.NewLaneStates(g.stream)
		for _, lane := range lanes {
			for ctx.Err() == nil {
				_, err := states.Reset(ctx, lane, ends[lane], 0)
				if err == nil {
					break
				}
				if !errors.Is(err, flow.ErrUnavailable) && !errors.Is(err, flow.ErrNotOwner) {
					h.fail("reset lane %d to %d: %v", lane, ends[lane], err)
					return nil
				}
				sleep(ctx, time.Second)
			}
		}
		if ctx.Err() == nil {
			h.insist(0, "lanes are reset", func() {
				h.saw("a lane is reset")
				then()
				h.refillSources()
			})
			h.nudge()
		}
		return nil
	})
}

// refillSources refills flow.sources for a lane that halts after a reset, as docs/runbooks/lanes.md says.
func (h *history) refillSources() {
	for _, g := range h.ingesters {
		if g != nil && g.real.Load() != nil && strings.Contains(fmt.Sprint(g.real.Load().Check(context.Background())), "refill it") {
			h.saw("flow.sources is refilled")
			h.warehouse.rows[sources] = slices.Clone(h.warehouse.rows[records])
		}
	}
	h.insist(10*time.Second, "the operator looks at flow.sources", h.refillSources)
}

// resetClaimed resets a lane to its checkpoint while a claim is open, as an ingester advises
// if rows of a claim are missing.
func (h *history) resetClaimed() {
	for lane := range h.lanes {
		if state := h.state(lane); state.Claim != nil {
			h.saw("a lane with an open claim is reset")
			h.pending.Add(1)
			h.uncounted = true // the claim is decided again
			h.holdIngesters()
			h.resetLanes([]int{lane}, map[int]uint64{lane: state.Done}, func() {
				h.release()
				h.pending.Add(-1)
			})
			return
		}
	}
	h.plan(50*time.Millisecond, "no claim is open", h.resetClaimed)
}

func (h *history) release() {
	h.held = false
	for i := range h.ingesters {
		h.startIngester(i)
	}
}

// holdIngesters kills all ingesters, and prevents starts until release.
func (h *history) holdIngesters() {
	h.held = true
	for i, g := range h.ingesters {
		if g != nil {
			h.ingesters[i] = nil
			g.kill()
		}
	}
}

// inserting reports whether an insert of a dead process may still take effect.
func (h *history) inserting() bool {
	return slices.ContainsFunc(h.parked, func(c *call) bool {
		return !c.done && c.deserted && c.fate != silent && strings.HasPrefix(c.name, "insert ")
	})
}
