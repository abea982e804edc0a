package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice/cmd/internal/deployment"
)

// watch looks how many records can be queried, again and again during a run.
type watch struct {
	deployed *deployment.Deployment
	seen     []sight
}

// sight is how many records could be queried at a time at the latest.
type sight struct {
	at   time.Time
	rows int64
}

// start watches until the function it returns is called.
func (w *watch) start(ctx context.Context) (end func() error, err error) {
	rows, err := stored(ctx, w.deployed)
	if err != nil {
		return nil, err
	}
	w.seen = []sight{{time.Now(), rows}}
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		for {
			if !deployment.Sleep(ctx, pause) {
				done <- nil
				return
			}
			rows, err := stored(ctx, w.deployed)
			if err != nil && ctx.Err() == nil {
				done <- err
				return
			}
			if err == nil {
				w.seen = append(w.seen, sight{time.Now(), rows})
			}
		}
	}()
	return func() error {
		stop()
		return <-done
	}, nil
}

// message is a request as it is stored.
type message struct {
	due  time.Time // when it was to be posted
	rows int64
}

// freshness is how long records took from when they were due at the api until
// they could be queried: half of them at most p50, 99 of 100 at most p99.
func (w *watch) freshness(ctx context.Context, p pass) (p50, p99 time.Duration, err error) {
	messages, err := w.messages(ctx, p)
	if err != nil {
		return 0, 0, err
	}
	all, err := waits(w.seen, messages)
	if err != nil {
		return 0, 0, err
	}
	return quantile(all, 0.5), quantile(all, 0.99), nil
}

// wait is how long some records took.
type wait struct {
	time.Duration
	rows int64
}

// waits are those of messages in the order of the stream. One lane is stored in
// that order, so that a message can be queried when as many records can be as
// it and all before it have; the first sight counts as the beginning.
func waits(seen []sight, messages []message) ([]wait, error) {
	var all []wait
	sum, at := seen[0].rows, 0
	for _, m := range messages {
		sum += m.rows
		for at < len(seen) && seen[at].rows < sum {
			at++
		}
		if at == len(seen) {
			return nil, fmt.Errorf("the watch ended at %d records, %d are stored", seen[at-1].rows, sum)
		}
		all = append(all, wait{seen[at].at.Sub(m.due), m.rows})
	}
	slices.SortFunc(all, func(a, b wait) int { return cmp.Compare(a.Duration, b.Duration) })
	return all, nil
}

// quantile is the least wait that so many of the records had at most.
func quantile(sorted []wait, q float64) time.Duration {
	var all, below int64
	for _, w := range sorted {
		all += w.rows
	}
	for _, w := range sorted {
		if below += w.rows; float64(below) >= q*float64(all) {
			return w.Duration
		}
	}
	return 0
}

// messages are those of a run in the order of the stream, all of the same number
// of records: an entry holds one after the other. The load gives its records
// timestamps at the pace at which they are due, and the first record of a
// request is due when the request is.
func (w *watch) messages(ctx context.Context, p pass) ([]message, error) {
	text, err := w.deployed.Query(ctx, fmt.Sprintf(`SELECT min(toUnixTimestamp64Milli(ts)), count() FROM flow.records
		WHERE position BETWEEN %d AND %d GROUP BY lane, stream_seq, intDiv(stream_idx, %d) AS request ORDER BY lane, stream_seq, request`,
		p.Acked.MinPosition, p.Acked.MaxPosition, halfBatch))
	if err != nil {
		return nil, err
	}
	late := p.Started.Sub(p.started) // making the records ready took so long
	var all []message
	for line := range strings.Lines(text) {
		var ms int64
		var m message
		if _, err := fmt.Sscan(line, &ms, &m.rows); err != nil {
			return nil, fmt.Errorf("a message is %q: %w", line, err)
		}
		m.due = time.UnixMilli(ms).Add(late)
		all = append(all, m)
	}
	if int64(len(all)) != p.Requests {
		return nil, fmt.Errorf("%d requests were stored as %d: their times cannot be told", p.Requests, len(all))
	}
	return all, nil
}
