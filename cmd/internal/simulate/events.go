package simulate

import (
	"time"

	"sluice/pkg/stream"
)

// disturb plans what goes wrong beside single calls.
func (h *history) disturb() {
	for range h.driver.random.IntN(6) {
		after := time.Duration(h.driver.random.Int64N(int64(busyTime)))
		lasting := time.Duration(1+h.driver.random.IntN(40)) * time.Second
		i := h.driver.random.IntN(2)
		switch h.driver.random.IntN(10) {
		case 0, 1:
			h.plan(after, "an ingester dies", func() { h.killIngester(i, lasting) })
		case 2:
			h.plan(after, "an ingester stops", func() { h.stopIngester(i, lasting) })
		case 3:
			h.plan(after, "an api dies", func() { h.killAPI(i, lasting) })
		case 4:
			h.plan(after, "an ingester stands still", func() {
				if g := h.ingesters[i]; g != nil {
					g.stands = time.Now().Add(lasting)
					h.saw("an ingester stands still")
				}
			})
		case 5:
			h.plan(after, "an api stands still", func() {
				if a := h.apis[i]; a != nil {
					a.stands = time.Now().Add(lasting)
				}
			})
		case 6:
			h.plan(after, "a connection is lost", func() { h.cut(i, lasting) })
		case 7:
			h.plan(after, "the warehouse is down", func() {
				h.warehouse.down = true
				h.plan(lasting, "the warehouse is up", func() { h.warehouse.down = false })
			})
		case 8:
			h.plan(after, "lanes are full", func() { h.fill(lasting) })
		case 9:
			h.plan(after, "tokens are forgotten", func() {
				h.warehouse.age(window + 1)
				h.saw("tokens are forgotten")
			})
		}
	}
}

func (h *history) killIngester(i int, lasting time.Duration) {
	g := h.ingesters[i]
	if g == nil {
		return
	}
	h.ingesters[i] = nil
	g.kill()
	h.saw("an ingester dies")
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

// cut cuts the connection of an api or an ingester.
func (h *history) cut(i int, lasting time.Duration) {
	var p *process
	if a := h.apis[i]; h.driver.random.IntN(2) == 0 && a != nil {
		p = a.process
	} else if g := h.ingesters[i]; g != nil {
		p = g.process
	}
	if p == nil || !p.connected {
		return
	}
	h.saw("a connection is lost")
	p.setConnected(false)
	h.plan(lasting/4, "a connection is back", func() { p.setConnected(true) })
}

// fill makes all lanes full for a while.
func (h *history) fill(lasting time.Duration) {
	h.setFull(true)
	h.saw("lanes are full")
	h.plan(lasting, "lanes have room", func() { h.setFull(false) })
}

func (h *history) setFull(full bool) {
	for lane := range h.lanes {
		h.server.streams[stream.LaneName(lane)].full = full
	}
}
