package simulate

import (
	"time"

	"sluice/cmd/internal/simulate/oracle"
)

// planDays plans the passing of days and the expiry of rows. Each step of the clocks adds
// 30 s of stream time; the sum must be a small part of the window.
func (h *history) planDays() {
	if h.window < 10*time.Minute {
		return
	}
	random := h.driver.random
	for range 1 + random.IntN(3) {
		days := 1 + random.IntN(5)
		h.plan(time.Duration(random.Int64N(int64(h.busy))), "days pass", func() { h.passDays(days) })
	}
	for range 2 + random.IntN(6) {
		h.plan(time.Duration(random.Int64N(int64(h.busy))), "rows expire", h.expire)
	}
}

// passDays advances all clocks by days, as if the ingesters' machines were off. It waits
// for inserts in flight: a connection does not last for days.
func (h *history) passDays(days int) {
	if h.isInserting() {
		h.plan(time.Second, "days pass", func() { h.passDays(days) })
		return
	}
	for i := range h.ingesters {
		h.killIngester(i, time.Duration(1+h.driver.random.IntN(10))*time.Second)
	}
	h.driver.days += time.Duration(days) * 24 * time.Hour
	h.saw("days pass")
}

func (h *history) expire() {
	gone, early := h.warehouse.expire()
	if len(early) > 0 {
		r := early[0]
		h.fail("%d rows expired early: %s/%d was stored at %v, and expired as of %v", len(early), r.Source, r.Key, r.arrived.UTC(), time.UnixMilli(r.storedAt).UTC())
	}
	for _, r := range gone {
		h.saw("a row expires")
		if claim := h.state(r.lane).Claim; claim != nil && claim.First <= r.seq && r.seq <= claim.Last {
			h.saw("a row of an open claim expires")
		}
		h.write(func(n *oracle.Notes) { n.Doubt(oracle.Record{Source: r.Source, Number: r.Key}) })
	}
}
