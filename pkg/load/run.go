package load

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
)

// grace is how long requests in flight may still take after a run was
// cancelled.
const grace = 5 * time.Second

// Run posts records as cfg says and measures the answers. It returns when all
// are answered, when the time is up, or when ctx is cancelled: then what is in
// flight gets 5 s more. The report is complete in every case but a Config that
// cannot be used. The error wraps ErrNotAcknowledged when any record that was
// sent was not acknowledged, and the error of ctx when it was cancelled; when
// neither is so it is that of Config.Stored.
func Run(ctx context.Context, cfg Config) (Report, error) {
	if err := cfg.set(); err != nil {
		return Report{}, err
	}
	target, err := cfg.target()
	if err != nil {
		return Report{}, err
	}
	feed, err := newFeed(cfg)
	if err != nil {
		return Report{}, err
	}
	tally := &tally{acked: cfg.Acked, failures: cfg.Failures, errors: map[string]int64{}}
	meter := newMeter(cfg.PIDs)
	bar := newBar(cfg)

	// In-flight requests outlive the end of ctx by the grace, no longer.
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
	for i := range cfg.Connections {
		w := &worker{cfg: cfg, number: i, feed: feed, tally: tally, conn: newConn(cfg, target), halt: halt}
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
	watch.Wait() // neither has an error to give

	report.MissedRecords = feed.missed()
	report.Processes = meter.usage(report.Acked.Records)
	return report, err
}

// worker is one connection at work.
type worker struct {
	cfg    Config
	number int // of the connection, from 0
	feed   *feed
	tally  *tally
	conn   *conn
	halt   context.CancelCauseFunc
}

func (w *worker) run(stop, inFlight context.Context) error {
	defer w.conn.close()
	zip := newZipper(w.cfg.Gzip && !w.cfg.Prepare)
	own := new(request)
	for stop.Err() == nil {
		r := w.feed.take(own, w.number)
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

// deliver sends a request until it is acknowledged, refused for good, or no
// longer worth it: always the same body under the same key, so that nothing is
// stored twice.
func (w *worker) deliver(stop, inFlight context.Context, r *request) error {
	sent := time.Now()
	since := sent
	if !r.due.IsZero() {
		since = r.due // waiting for a free connection is waiting
	}
	w.tally.sent(r)
	key := r.key
	if w.cfg.NoKey {
		key = ""
	}
	for attempt := 0; ; attempt++ {
		a, err := w.conn.post(inFlight, r.body, r.authorization, key)
		if err == nil && a.ok(w.cfg.Bulk != nil) {
			return w.tally.acknowledged(r, time.Since(since))
		}
		w.tally.failed(reason(a, err))
		pause := max(a.retryAfter, backoff(attempt))
		again := err != nil || retryable(a.status)
		if !again || time.Since(sent)+pause > w.cfg.GiveUp || !sleep(stop, pause) {
			return w.tally.gaveUp(a, err)
		}
	}
}

// retryable tells the statuses after which the same request may well succeed.
func retryable(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// backoff doubles from about 50 ms to about 2 s; jitter keeps connections that
// failed together from coming back together.
func backoff(attempt int) time.Duration {
	most := min(2*time.Second, 50*time.Millisecond<<min(attempt, 10))
	return most/2 + rand.N(most)
}

// reason is the label an attempt that failed is counted under.
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

// sleep tells whether d passed before ctx was done.
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
