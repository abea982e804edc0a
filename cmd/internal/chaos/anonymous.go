package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"sluice/cmd/internal/deployment"
)

// anonymous posts records without an identity, many of them byte-identical. Only the
// idempotency key of a request protects its records. Some requests go to all apis at
// once; some are posted again after they were acknowledged.
type anonymous struct {
	poster      *poster
	each        []*poster // one per api
	rate        float64   // records per second
	connections int
	seed        uint64

	ledger *ledger

	mu     sync.Mutex
	failed error // permanent
}

const (
	anonymousRecords = 30               // maximum per request
	anonymousAgain   = 20 * time.Second // maximum delay before a request is posted again
)

func (s *site) newAnonymous(seed uint64) *anonymous {
	a := &anonymous{poster: newPoster(s.URL, s.Tokens[anonymousSource]), rate: s.cfg.Rate * anonymousShare, connections: 4, seed: seed, ledger: s.ledgers[anonymousSource]}
	for _, p := range s.Of(deployment.API) {
		a.each = append(a.each, newPoster("http://"+p.HTTP, s.Tokens[anonymousSource]))
	}
	return a
}

func (a *anonymous) run(ctx context.Context, until time.Duration) error {
	began := time.Now()
	every := time.Duration(float64(a.connections) * (1 + anonymousRecords) / 2 / a.rate * float64(time.Second))
	var clients sync.WaitGroup
	for c := range a.connections {
		clients.Go(func() {
			r := rand.New(rand.NewPCG(a.seed, uint64(c)))
			for n := 0; time.Since(began) < until && deployment.Sleep(ctx, time.Until(began.Add(time.Duration(n)*every))); n++ {
				a.one(ctx, r, fmt.Sprintf("%d-%d", c, n))
			}
		})
	}
	clients.Wait()
	return a.failed
}

// one posts one request until it is acknowledged or abandoned.
func (a *anonymous) one(ctx context.Context, r *rand.Rand, mark string) {
	n := 1 + r.IntN(anonymousRecords)
	twins := r.IntN(2) == 0
	body := bytes.NewBufferString("[")
	for i := range n {
		if i > 0 {
			body.WriteByte(',')
		}
		value := i
		if twins {
			value = 0
		}
		fmt.Fprintf(body, `{"recordType":"EVENT","valueType":"VARIABLE","intent":"CREATED","timestamp":%d,"value":{"bpmnProcessId":"anonymous","processInstanceKey":%q,"name":"n","value":"%d"}}`,
			time.Now().Truncate(time.Minute).UnixMilli(), mark, value)
	}
	body.WriteByte(']')
	if r.IntN(8) == 0 {
		a.deliverToEach(ctx, body.Bytes(), mark)
	}
	acked := a.deliver(ctx, body.Bytes(), mark)
	if err := a.ledger.noteRequest("anonymous-"+mark, body.Bytes(), acked); err != nil {
		a.fail(err)
	}
	if acked && r.IntN(5) == 0 && deployment.Sleep(ctx, time.Duration(r.Float64()*float64(min(anonymousAgain, time.Second)))) {
		a.deliver(ctx, body.Bytes(), mark) // as if its answer had been lost
	}
}

func (a *anonymous) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = err
}

// deliverToEach posts a request to all apis concurrently and ignores the answers: deliver
// resends it.
func (a *anonymous) deliverToEach(ctx context.Context, body []byte, mark string) {
	var all sync.WaitGroup
	for _, p := range a.each {
		all.Go(func() { _, _ = p.post(ctx, body, "anonymous-"+mark) })
	}
	all.Wait()
}

func (a *anonymous) deliver(ctx context.Context, body []byte, mark string) (acked bool) {
	for began, attempt := time.Now(), 0; time.Since(began) < giveUp; attempt++ {
		again, err := a.poster.post(ctx, body, "anonymous-"+mark)
		if err == nil {
			return true
		}
		if !again {
			a.fail(fmt.Errorf("post records without identity: %w", err))
			return false
		}
		if !deployment.Sleep(ctx, min(50*time.Millisecond<<min(attempt, 10), 2*time.Second)) {
			return false
		}
	}
	return false
}
