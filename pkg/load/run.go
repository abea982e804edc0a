package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// ErrNotAcknowledged means that the api did not acknowledge all sent records; the rest may
// be stored or not.
var ErrNotAcknowledged = errors.New("not acknowledged")

// grace bounds requests in flight after a run was cancelled.
const grace = 5 * time.Second

// Run posts records and measures the answers. It returns when all are answered, when the
// time is up, or when ctx is cancelled; then requests in flight get 5 s more. The report is
// complete unless cfg is invalid. The error wraps ErrNotAcknowledged if a sent record was
// not acknowledged, and that of ctx if it was cancelled; else it is that of Config.Stored.
func Run(ctx context.Context, cfg Config) (Report, error) {
	if err := cfg.set(); err != nil {
		return Report{}, err
	}
	target, err := cfg.target()
	if err != nil {
		return Report{}, err
	}
	feed := newFeed(cfg)
	tally := &tally{posted: cfg.Posted, failures: cfg.Failures, errors: map[string]int64{}}
	meter := newMeter(cfg.PIDs)
	bar := newBar(cfg)

	// Requests in flight may outlive ctx by grace.
	inFlight, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	stop, halt := context.WithCancelCause(ctx)
	defer halt(nil)
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace, abort) })()

	began := time.Now()
	feed.began = began
	done := make(chan struct{})
	var watch errgroup.Group
	watch.Go(func() error { meter.run(done); return nil })
	watch.Go(func() error { bar.run(done, tally); return nil })

	var workers errgroup.Group
	for range cfg.Connections {
		w := &worker{cfg: cfg, feed: feed, tally: tally, conn: newConn(cfg, target), halt: halt}
		workers.Go(func() error { return w.run(stop, inFlight) })
	}
	err = workers.Wait()
	elapsed := time.Since(began)
	report := tally.report(cfg, began, elapsed)
	err = errors.Join(err, context.Cause(ctx), tally.shortfall())
	if err == nil && cfg.Stored != nil {
		err = cfg.Stored(ctx, report.Acked)
		report.stored(time.Since(began), err)
	}
	close(done)
	watch.Wait() // neither returns an error

	report.MissedRecords = feed.missed()
	report.Processes = meter.usage(report.Acked.Records)
	return report, err
}

// worker posts over one connection.
type worker struct {
	cfg   Config
	feed  *feed
	tally *tally
	conn  *conn
	halt  context.CancelCauseFunc
}

func (w *worker) run(stop, inFlight context.Context) error {
	defer w.conn.close()
	zip := newZipper(w.cfg.Gzip)
	own := new(request)
	for stop.Err() == nil {
		r := w.feed.take(own)
		if r == nil {
			return nil
		}
		if err := zip.compress(r); err != nil {
			return err
		}
		if !sleep(stop, time.Until(r.due)) {
			return nil
		}
		if err := w.deliver(stop, inFlight, r); err != nil {
			w.halt(err)
			return err
		}
	}
	return nil
}

// deliver sends a request until it is acknowledged, rejected, or abandoned. Attempts have
// the same body and key, so that records are stored once.
func (w *worker) deliver(stop, inFlight context.Context, r *request) error {
	sent := time.Now()
	since := sent
	if !r.due.IsZero() {
		since = r.due // the wait for a free connection counts
	}
	w.tally.sent(r)
	key := r.key
	if w.cfg.NoKey {
		key = ""
	}
	for attempt := 0; ; attempt++ {
		a, err := w.conn.post(inFlight, r.body, r.authorization, key)
		if err == nil && a.ok() {
			return w.tally.acknowledged(r, time.Since(since))
		}
		w.tally.failed(reason(a, err))
		pause := max(a.retryAfter, backoff(attempt))
		again := err != nil || retryable(a.status)
		if !again || time.Since(sent)+pause > w.cfg.GiveUp || !sleep(stop, pause) {
			return w.tally.gaveUp(r, a, err)
		}
	}
}

// retryable reports whether a retry may succeed after a status.
func retryable(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// backoff doubles from about 50 ms to about 2 s. Jitter spreads connections that failed
// together.
func backoff(attempt int) time.Duration {
	maxWait := min(2*time.Second, 50*time.Millisecond<<min(attempt, 10))
	return maxWait/2 + rand.N(maxWait)
}

// reason is the label of a failed attempt.
func reason(a answer, err error) string {
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case err != nil:
		return "connection"
	case a.status == http.StatusOK:
		return "200 without OK"
	default:
		return strconv.Itoa(a.status)
	}
}

// sleep reports whether d passed before ctx was done.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// tally has the sums of all connections. Safe for concurrent use.
type tally struct {
	posted   Posted // may be nil
	failures int    // abandoned requests that end the run

	mu        sync.Mutex
	sentSum   Totals
	ackedSum  Totals
	latency   histogram
	wire      int64 // bytes of acknowledged bodies, as sent
	requests  int64 // acknowledged
	attempts  int64
	started   int64 // requests sent at least once
	abandoned int64 // requests not acknowledged
	errors    map[string]int64
	last      error // why the latest request was abandoned
}

func (t *tally) sent(r *request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.started++
	t.sentSum.add(r.totals)
}

func (t *tally) acknowledged(r *request, latency time.Duration) error {
	err := t.record(r, true)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ackedSum.add(r.totals)
	t.latency.record(latency)
	t.wire += int64(len(r.body))
	t.requests++
	t.attempts++
	return err
}

// record reports the result of a request to Posted.
func (t *tally) record(r *request, acked bool) error {
	if t.posted == nil {
		return nil
	}
	if err := t.posted(r.plain, acked); err != nil {
		return fmt.Errorf("record a posted request: %w", err)
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
func (t *tally) gaveUp(r *request, a answer, err error) error {
	if err := t.record(r, false); err != nil {
		return err
	}
	if err == nil {
		err = fmt.Errorf("status %d: %.300s", a.status, a.body)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.abandoned++
	t.last = err
	if t.abandoned >= int64(t.failures) {
		return fmt.Errorf("stopped after %d unacknowledged requests", t.abandoned)
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

// progress returns the acknowledged records and bytes of JSON.
func (t *tally) progress() (records, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ackedSum.Records, t.ackedSum.Bytes
}
