package trial

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sluice/pkg/load"
)

// giveUp ends the retries of a request. It is well within the duplicate
// window of two minutes, for as long a client is promised to be recognised,
// with what links and paused parts may hold a copy of it back.
const giveUp = 45 * time.Second

// client is one way to post.
type client struct {
	name  string
	share float64 // of all records
	cfg   load.Config
}

// clients are all ways: they meet different paths of the stream.
func clients() []client {
	return []client{
		{"bulk", 0.60, load.Config{Batch: 500, Connections: 4}},
		{"large", 0.25, load.Config{Batch: 4000, Connections: 2}},                          // several messages each: atomic batches of their own
		{"small", 0.12, load.Config{Batch: 20, Connections: 4, Gzip: true, NoKey: true}},   // known again by their content
		{"single", 0.03, load.Config{Batch: 1, Connections: 64, Timeout: 3 * time.Second}}, // gathered into groups
	}
}

// posted is what the clients have sent, and what of it was acknowledged.
type posted struct {
	sent, acked []load.Range
	abandoned   int64 // records
}

// post posts until the time is up and everything is answered or given up.
func (s *stage) post(ctx context.Context) (posted, error) {
	var (
		mu  sync.Mutex
		all posted
		err error
		wg  sync.WaitGroup
	)
	seeds := rand.New(rand.NewPCG(s.cfg.Seed, 0x10ad))
	for _, c := range clients() {
		c.cfg.Seed = seeds.Uint64() | 1
		wg.Go(func() {
			one, e := s.postAs(ctx, c)
			mu.Lock()
			defer mu.Unlock()
			all.sent = append(all.sent, one.sent...)
			all.acked = append(all.acked, one.acked...)
			all.abandoned += one.abandoned
			err = errors.Join(err, e)
		})
	}
	wg.Wait()
	return all, err
}

func (s *stage) postAs(ctx context.Context, c client) (posted, error) {
	file, err := os.Create(filepath.Join(s.dir, "acked-"+c.name))
	if err != nil {
		return posted{}, err
	}
	defer file.Close()
	cfg := c.cfg
	cfg.URL, cfg.Token = "http://"+s.links[linkClients][0].addr(), s.token
	cfg.Rate, cfg.Duration = s.cfg.Rate*c.share, s.cfg.For
	cfg.GiveUp, cfg.Failures = giveUp, 1<<30
	if cfg.Timeout == 0 {
		cfg.Timeout = 8 * time.Second
	}
	cfg.Acked = file
	report, err := load.Run(ctx, cfg)
	if err != nil && !errors.Is(err, load.ErrNotAcknowledged) {
		return posted{}, fmt.Errorf("post %s: %w", c.name, err)
	}
	s.journal.note("%s: %d records of %d acknowledged, %d retries, p50 %.0f ms, p99 %.0f ms, failed attempts %v", c.name, report.Acked.Records,
		report.Sent.Records, report.Retries, report.Latency.P50*1e3, report.Latency.P99*1e3, report.Failed)

	p := posted{abandoned: report.Sent.Records - report.Acked.Records}
	if _, err := file.Seek(0, 0); err != nil {
		return posted{}, err
	}
	if p.acked, err = load.ReadAcked(file); err != nil {
		return posted{}, err
	}
	if got := records(p.acked); got != report.Acked.Records {
		return posted{}, fmt.Errorf("the ranges acknowledged to %s hold %d records, its report says %d", c.name, got, report.Acked.Records)
	}
	p.sent, err = firstOf(cfg.Seed, report.Sent.Records)
	return p, err
}

// firstOf is where the first n records of a seed are: they are made again.
func firstOf(seed uint64, n int64) ([]load.Range, error) {
	g, err := load.NewGenerator(load.GeneratorConfig{Seed: seed})
	if err != nil {
		return nil, err
	}
	var all []load.Range
	var buf []byte
	for n > 0 {
		batch := min(n, 10_000)
		var ranges []load.Range
		buf, _, ranges = g.AppendBatch(buf[:0], int(batch))
		n -= batch
		if all == nil {
			all = ranges
			continue
		}
		for i := range ranges {
			all[i].Last = ranges[i].Last
		}
	}
	return all, nil
}
