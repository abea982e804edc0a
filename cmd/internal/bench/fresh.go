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

type watch struct {
	deployed *deployment.Deployment
	seen     []sight
}

// sight is the number of queryable records at a time.
type sight struct {
	at   time.Time
	rows int64
}

// start polls until the returned function is called.
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

// message is a stored request.
type message struct {
	due  time.Time // when it was to be posted
	rows int64
}

// freshness returns quantiles of the time from when records are due until they are queryable.
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

// wait is the freshness of some records.
type wait struct {
	time.Duration
	rows int64
}

// waits returns the waits of messages in stream order. One lane is stored in that order: a
// message is queryable once the number of queryable records includes it and all earlier
// ones. The first sight is the zero point.
func waits(seen []sight, messages []message) ([]wait, error) {
	var all []wait
	sum, at := seen[0].rows, 0
	for _, m := range messages {
		sum += m.rows
		for at < len(seen) && seen[at].rows < sum {
			at++
		}
		if at == len(seen) {
			return nil, fmt.Errorf("polling ended at %d of %d stored records", seen[at-1].rows, sum)
		}
		all = append(all, wait{seen[at].at.Sub(m.due), m.rows})
	}
	slices.SortFunc(all, func(a, b wait) int { return cmp.Compare(a.Duration, b.Duration) })
	return all, nil
}

// quantile returns the smallest wait that this share of the records did not exceed.
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

// messages returns the messages of a run in stream order, all with the same number of
// records. Timestamps of the load's records are the times when they are due. A request is
// due with its first record.
func (w *watch) messages(ctx context.Context, p pass) ([]message, error) {
	text, err := w.deployed.Query(ctx, fmt.Sprintf(`SELECT min(toUnixTimestamp64Milli(ts)), count() FROM flow.records
		WHERE position BETWEEN %d AND %d GROUP BY lane, stream_seq, intDiv(stream_idx, %d) AS request ORDER BY lane, stream_seq, request`,
		p.Acked.MinPosition, p.Acked.MaxPosition, halfBatch))
	if err != nil {
		return nil, err
	}
	late := p.Started.Sub(p.started) // time to generate the records
	var all []message
	for line := range strings.Lines(text) {
		var ms int64
		var m message
		if _, err := fmt.Sscan(line, &ms, &m.rows); err != nil {
			return nil, fmt.Errorf("parse message %q: %w", line, err)
		}
		m.due = time.UnixMilli(ms).Add(late)
		all = append(all, m)
	}
	if int64(len(all)) != p.Requests {
		return nil, fmt.Errorf("%d requests were stored as %d: their waits are undefined", p.Requests, len(all))
	}
	return all, nil
}
