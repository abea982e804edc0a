package load

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// tally is what all connections together have seen. Safe for concurrent use.
type tally struct {
	acked    io.Writer // may be nil
	failures int       // abandoned requests that end the run

	mu        sync.Mutex
	sentSum   Totals
	ackedSum  Totals
	latency   histogram
	wire      int64 // bytes of bodies acknowledged, as sent
	requests  int64 // acknowledged
	attempts  int64
	started   int64 // requests sent at least once
	abandoned int64 // requests not acknowledged
	errors    map[string]int64
	last      error // why the latest request was abandoned
	line      []byte
}

func (t *tally) sent(r *request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.started++
	t.sentSum.add(r.totals)
}

func (t *tally) acknowledged(r *request, latency time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ackedSum.add(r.totals)
	t.latency.record(latency)
	t.wire += int64(len(r.body))
	t.requests++
	t.attempts++
	if t.acked == nil {
		return nil
	}
	t.line = appendRanges(t.line[:0], r.ranges)
	if _, err := t.acked.Write(t.line); err != nil {
		return fmt.Errorf("write acknowledged ranges: %w", err)
	}
	return nil
}

func (t *tally) failed(reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempts++
	t.errors[reason]++
}

// gaveUp ends the run once too many requests were abandoned.
func (t *tally) gaveUp(a answer, err error) error {
	if err == nil {
		err = fmt.Errorf("status %d: %.300s", a.status, a.body)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.abandoned++
	t.last = err
	if t.abandoned >= int64(t.failures) {
		return fmt.Errorf("%d requests were not acknowledged, no more are sent", t.abandoned)
	}
	return nil
}

func (t *tally) shortfall() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	missing := t.sentSum.Records - t.ackedSum.Records
	if missing == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d records: %w; the last of %d such requests: %w", missing, t.sentSum.Records, ErrNotAcknowledged, t.abandoned, t.last)
}

// progress is the records and bytes of JSON acknowledged so far.
func (t *tally) progress() (records, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ackedSum.Records, t.ackedSum.Bytes
}
