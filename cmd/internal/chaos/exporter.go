package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// exporter sends the log of one partition as an exporter of records does that
// posts to the api's own route: it fills a buffer, posts it, and posts all of it again, together with what has come
// meanwhile, until it is acknowledged. When the partition gets another leader,
// or its broker starts again, it goes on from an acknowledgement up to ten
// minutes old, with other buffers. Sometimes the leader before has not
// noticed, and posts its last buffer still.
type exporter struct {
	post    func(context.Context, *bytes.Buffer) (again bool, err error)
	log     *partitionLog
	random  *rand.Rand
	forms   []form
	until   time.Time     // no fall-backs any more
	deepest time.Duration // of a fall-back
	mean    time.Duration // between two of them

	form    form
	size    int       // of a buffer
	next    int       // record to send
	acks    []ack     // in the order of time, since the last fall-back
	falls   time.Time // when it falls back next
	strays  *sync.WaitGroup
	straggl context.Context // of buffers of leaders before

	count exported
}

// ack is what was acknowledged at a time.
type ack struct {
	at   time.Time
	next int
}

// exported is what exporters did.
type exported struct {
	records   int64 // acknowledged, every time
	again     int64 // of them, that had been acknowledged before
	fallbacks int
	retries   int
}

func (e *exported) add(o exported) {
	e.records += o.records
	e.again += o.again
	e.fallbacks += o.fallbacks
	e.retries += o.retries
}

// run sends everything until the log is whole and acknowledged.
func (e *exporter) run(ctx context.Context) error {
	e.lead(time.Now())
	most := 0
	for {
		n, over := e.fill(ctx)
		if over {
			return ctx.Err()
		}
		acked, err := e.deliver(ctx, n)
		if err != nil {
			return err
		}
		if acked {
			e.count.again += int64(max(0, min(most, e.next)-e.acks[len(e.acks)-2].next))
			most = max(most, e.next)
		}
		if now := time.Now(); now.After(e.falls) {
			e.fallBack(now)
		}
	}
}

// lead begins a leadership: what an exporter does from here on may differ from
// what the one before did.
func (e *exporter) lead(now time.Time) {
	e.form = e.forms[e.random.IntN(len(e.forms))]
	e.size = 20 + e.random.IntN(980)
	e.acks = append(e.acks, ack{now, e.next})
	e.falls = now.Add(time.Duration(e.random.ExpFloat64() * float64(e.mean)))
	if e.falls.After(e.until) {
		e.falls = e.until.Add(24 * time.Hour)
	}
}

// fallBack goes back to what was acknowledged some time ago.
func (e *exporter) fallBack(now time.Time) {
	since := now.Add(-time.Duration(e.random.Float64() * float64(e.deepest)))
	to := 0
	for _, a := range e.acks {
		if a.at.After(since) {
			break
		}
		to = a.next
	}
	kept := e.acks[:0]
	for _, a := range e.acks {
		if a.next <= to {
			kept = append(kept, a)
		}
	}
	e.next, e.acks = to, kept
	e.count.fallbacks++
	e.lead(now)
}

// fill waits for a buffer: so many records, or what there is after a while. It
// is over when all are acknowledged and no more will come.
func (e *exporter) fill(ctx context.Context) (n int, over bool) {
	for waited := time.Duration(0); ; waited += 20 * time.Millisecond {
		there, whole := e.log.Len()
		n = min(there-e.next, e.size)
		switch {
		case n == e.size, n > 0 && (whole || waited > time.Second):
			return n, false
		case n == 0 && whole:
			return 0, true
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return 0, true
		}
	}
}

// deliver posts a buffer until it is acknowledged, or until the partition gets
// another leader.
func (e *exporter) deliver(ctx context.Context, n int) (acked bool, err error) {
	for attempt := 0; ; attempt++ {
		body, err := e.body(n)
		if err != nil {
			return false, err
		}
		again, err := e.post(ctx, body)
		now := time.Now()
		switch {
		case err == nil:
			e.count.records += int64(n)
			e.next += n
			e.acks = append(e.acks, ack{now, e.next})
			return true, nil
		case !again:
			return false, err
		case now.After(e.falls):
			e.straggle(body)
			return false, nil
		}
		e.count.retries++
		if !sleep(ctx, min(50*time.Millisecond<<min(attempt, 10), 2*time.Second)) {
			return false, ctx.Err()
		}
		if there, _ := e.log.Len(); e.random.IntN(2) == 0 { // the buffer has grown
			n = min(there-e.next, n+e.size/2, 2*e.size)
		}
	}
}

// straggle leaves a buffer to the leader before, which goes on posting it
// beside its successor.
func (e *exporter) straggle(body *bytes.Buffer) {
	if e.random.IntN(2) == 0 {
		return
	}
	raw := body.Bytes()
	e.strays.Go(func() {
		for sleep(e.straggl, time.Second) {
			if again, err := e.post(e.straggl, bytes.NewBuffer(raw)); err == nil || !again {
				return
			}
		}
	})
}

// body is the buffer as JSON.
func (e *exporter) body(n int) (*bytes.Buffer, error) {
	records, err := e.log.Read(e.next, e.next+n)
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	for i, r := range records {
		if i > 0 {
			body.WriteByte(',')
		} else {
			body.WriteByte('[')
		}
		if err := e.form.write(&body, r, e.random.Uint64N(1<<51)); err != nil {
			return nil, err
		}
	}
	body.WriteByte(']')
	return &body, nil
}

// poster posts bodies under a token.
type poster struct {
	url, token string
	client     *http.Client
}

func newPoster(addr, token string) *poster {
	return &poster{"http://" + addr + "/flow/flowRecord/batch", "Bearer " + token,
		&http.Client{Timeout: 8 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

// post sends a body once. Without an error it is durable; otherwise it may be,
// and again tells whether it is worth another try.
func (p *poster) post(ctx context.Context, body *bytes.Buffer, key string) (again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body.Bytes()))
	if err != nil {
		return false, err
	}
	req.Header.Set("Authorization", p.token)
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := p.client.Do(req)
	if err != nil {
		return true, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	switch {
	case err != nil:
		return true, err
	case res.StatusCode == http.StatusOK && strings.TrimSpace(string(answer)) == `{"status":"OK"}`:
		return false, nil
	case res.StatusCode >= 500, res.StatusCode == http.StatusTooManyRequests, res.StatusCode == http.StatusRequestTimeout:
		return true, errors.New(res.Status)
	}
	return false, fmt.Errorf("%s: %.300s", res.Status, answer)
}
