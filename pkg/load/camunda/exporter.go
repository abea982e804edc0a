package camunda

import (
	"context"
	"sync"
	"time"
)

// Exporter exports the log of one partition. Only Fail may be called concurrently with Run.
type Exporter struct {
	cfg      Config
	failures chan Failure

	bulk     bulk
	next     int       // next record to read
	acked    int       // records before it are acknowledged
	maxAcked int       // maximum of acked, for counting resends
	timer    time.Time // of the next periodic flush
	tries    int       // attempts at a full bulk
	again    time.Time // next attempt at a full bulk

	open       bool // this leadership created the templates
	leadership int
	remembered remembered

	strays    sync.WaitGroup // bulks of stale leaders
	straying  context.Context
	endStrays context.CancelFunc

	count Count
}

type Count struct {
	Records  int64 // acknowledged, resends included
	Again    int64 // of them, acknowledged before
	Bulks    int64 // acknowledged
	Retries  int64 // unacknowledged bulks
	Failures int64 // of the broker
	Late     int64 // acknowledged bulks of stale leaders
}

func (c *Count) Add(o Count) {
	c.Records += o.Records
	c.Again += o.Again
	c.Bulks += o.Bulks
	c.Retries += o.Retries
	c.Failures += o.Failures
	c.Late += o.Late
}

func New(cfg Config) *Exporter {
	return &Exporter{cfg: cfg.withDefaults(), failures: make(chan Failure, 16)}
}

// poll is the interval of checks for new records.
const poll = 20 * time.Millisecond

// Run exports until the log is complete and acknowledged, or until ctx ends. It returns
// errors of the log and of ctx, and retries errors of Elasticsearch forever.
func (e *Exporter) Run(ctx context.Context) (Count, error) {
	var late sync.Mutex
	e.straying, e.endStrays = context.WithCancel(ctx)
	defer func() { e.endStrays(); e.strays.Wait() }()
	e.lead(time.Now(), 0)
	for {
		over, err := e.step(ctx, &late)
		if over || err != nil {
			e.endStrays()
			e.strays.Wait()
			return e.count, err
		}
	}
}

// step carries out the next due action, or waits for it.
func (e *Exporter) step(ctx context.Context, late *sync.Mutex) (over bool, err error) {
	now := time.Now()
	e.remember(now)
	select {
	case f := <-e.failures:
		e.fail(now, f, late)
		return false, nil
	default:
	}
	full := e.bulk.records >= e.cfg.BulkRecords || e.bulk.documents >= e.cfg.BulkBytes
	switch {
	case !now.Before(e.timer):
		e.timer = now.Add(e.cfg.BulkDelay)
		if e.bulk.records > 0 {
			e.flush(ctx)
		}
		return false, nil
	case full && !now.Before(e.again):
		if !e.flush(ctx) {
			e.again = time.Now().Add(min(e.cfg.Backoff<<min(e.tries, 10), e.cfg.MaxBackoff))
			e.tries++
		}
		return false, nil
	case !full:
		if read, whole, err := e.read(); read || err != nil {
			return false, err
		} else if whole && e.bulk.records == 0 {
			return true, nil
		}
	}
	wait := e.timer.Sub(now)
	if full {
		wait = min(wait, e.again.Sub(now))
	} else {
		wait = min(wait, poll)
	}
	select {
	case f := <-e.failures:
		e.fail(time.Now(), f, late)
	case <-time.After(wait):
	case <-ctx.Done():
		return false, ctx.Err()
	}
	return false, nil
}

// read adds available records to the bulk until it is full.
func (e *Exporter) read() (read, whole bool, err error) {
	there, whole := e.cfg.Log.Len()
	to := min(there, e.next+e.cfg.BulkRecords-e.bulk.records)
	if to <= e.next {
		return false, whole, nil
	}
	records, err := e.cfg.Log.Read(e.next, to)
	if err != nil {
		return false, whole, err
	}
	for _, record := range records {
		e.bulk.add(e.cfg.Partition, e.leadership, record)
		e.next++
		if e.bulk.documents >= e.cfg.BulkBytes {
			break
		}
	}
	return true, whole, nil
}

// flush posts the bulk once, and keeps it unless acknowledged.
func (e *Exporter) flush(ctx context.Context) bool {
	if !e.open {
		if err := e.cfg.To.Templates(ctx); err != nil {
			e.count.Retries++
			return false
		}
		e.open = true
	}
	if err := e.cfg.To.Bulk(ctx, e.bulk.body); err != nil {
		e.count.Retries++
		return false
	}
	e.count.Bulks++
	e.count.Records += int64(e.bulk.records)
	e.count.Again += int64(max(0, min(e.maxAcked, e.next)-e.acked))
	e.acked, e.maxAcked = e.next, max(e.maxAcked, e.next)
	e.tries, e.again = 0, time.Time{}
	e.bulk.reset()
	return true
}
