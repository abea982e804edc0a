package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load"
	"sluice/pkg/load/camunda"
)

// posting is who posts in a run.
type posting struct {
	clients   []client
	engines   []engine
	anonymous bool
	fields    bool          // a dataset tool changes fields
	giveUp    time.Duration // ends the retries of a request
}

// giveUp ends the retries of a request whose records have no identity. It is well within
// the window in which a repeat is recognised, with what links and paused processes may
// hold a copy of it back.
const giveUp = 45 * time.Second

// client is one way to post requests, each of other records. Every client is a source of
// its own.
type client struct {
	source string
	share  float64 // of all records
	cfg    load.Config
	after  float64 // of the run, it begins
}

// engine is a workflow engine, and how its exporters write what they send again and
// again, cut into other requests. Keys and positions of engines are equal: all begin at 1.
type engine struct {
	source     string
	share      float64 // of all records, before they are sent again
	partitions int
	forms      []form // of the api's own route; none: bulks, as Camunda's exporters write them
}

// anonymousSource posts records without any identity, anonymousShare of all.
const (
	anonymousSource = "anonymous"
	anonymousShare  = 0.04
)

// posts are all of them, which meet different paths of the stream, or brokers alone.
func (c Config) posts() posting {
	if c.Brokers {
		return posting{engines: []engine{{"engine-b", 1, 3, nil}}}
	}
	return posting{
		clients: []client{
			{source: "bulk", share: 0.32, cfg: load.Config{Batch: 500, Connections: 4}},
			{source: "large", share: 0.15, cfg: load.Config{Batch: 4000, Connections: 2}},                          // several messages each
			{source: "small", share: 0.08, cfg: load.Config{Batch: 20, Connections: 4, Gzip: true, NoKey: true}},   // known again by their content
			{source: "single", share: 0.02, cfg: load.Config{Batch: 1, Connections: 64, Timeout: 3 * time.Second}}, // many of them in an entry
			{source: "late", share: 0.05, cfg: load.Config{Batch: 1000, Connections: 2, NoKey: true}, after: 0.15}, // has two lanes, and its requests are cut
		},
		engines: []engine{
			{"engine-a", 0.12, 3, []form{asWritten, sortedMembers, withoutID}},
			{"engine-b", 0.12, 3, nil},
			{"ids-only", 0.08, 2, []form{onlyID, onlyIDSorted}},
		},
		anonymous: true, giveUp: giveUp,
	}
}

// sources are the names of all of them.
func (p posting) sources() (names []string) {
	for _, c := range p.clients {
		names = append(names, c.source)
	}
	for _, e := range p.engines {
		names = append(names, e.source)
	}
	if p.anonymous {
		names = append(names, anonymousSource)
	}
	return names
}

// truth is what was sent by all, and what of it was acknowledged.
type truth struct {
	mu        sync.Mutex
	sources   map[string]posted
	anonymous *anonymous
	exported  camunda.Count
}

// posted is what one source has sent.
type posted struct {
	sent, acked []load.Range
	abandoned   int64           // records
	counts      map[count]int64 // what its counters must come to; nil when that depends on what was abandoned
}

// post posts until the time is up and everything is answered or given up.
func (s *site) post(ctx context.Context, all posting) (*truth, error) {
	t := &truth{sources: map[string]posted{}, anonymous: &anonymous{}}
	seeds := rand.New(rand.NewPCG(s.cfg.Seed, 0x10ad))
	work, ctx := errgroup.WithContext(ctx)
	for _, c := range all.clients {
		c.cfg.Seed, c.cfg.GiveUp = seeds.Uint64()|1, all.giveUp
		work.Go(func() error { return s.postAs(ctx, c, t) })
	}
	for _, e := range all.engines {
		seed := seeds.Uint64()
		work.Go(func() error { return s.export(ctx, e, seed, t) })
	}
	if all.anonymous {
		t.anonymous = s.newAnonymous(seeds.Uint64())
		work.Go(func() error { return t.anonymous.run(ctx, s.cfg.For) })
	}
	if all.fields {
		work.Go(func() error { return s.changeFields(ctx, all.giveUp) })
	}
	err := work.Wait()
	s.journal.note("exporters: %+v", t.exported)
	return t, err
}

func (s *site) postAs(ctx context.Context, c client, t *truth) error {
	file, err := os.Create(filepath.Join(s.Dir, "acked-"+c.source))
	if err != nil {
		return err
	}
	defer file.Close()
	wait := time.Duration(c.after * float64(s.cfg.For))
	if !deployment.Sleep(ctx, wait) {
		return ctx.Err()
	}
	cfg := c.cfg
	cfg.URL, cfg.Token, cfg.Acked = s.URL, s.Tokens[c.source], file
	cfg.Rate, cfg.Duration, cfg.Failures = s.cfg.Rate*c.share, s.cfg.For-wait, 1<<30
	if cfg.Timeout == 0 {
		cfg.Timeout = 8 * time.Second
	}
	report, err := load.Run(ctx, cfg)
	if err != nil && !errors.Is(err, load.ErrNotAcknowledged) {
		return fmt.Errorf("post %s: %w", c.source, err)
	}
	s.journal.note("%s: %d records of %d acknowledged, %d retries, p50 %.0f ms, p99 %.0f ms, max %.0f ms, failed attempts %v", c.source, report.Acked.Records,
		report.Sent.Records, report.Retries, report.Latency.P50*1e3, report.Latency.P99*1e3, report.Latency.Max*1e3, report.Failed)

	p := posted{abandoned: report.Sent.Records - report.Acked.Records}
	if _, err := file.Seek(0, 0); err != nil {
		return err
	}
	if p.acked, err = load.ReadAcked(file); err != nil {
		return err
	}
	if got := records(p.acked); got != report.Acked.Records {
		return fmt.Errorf("the ranges acknowledged to %s hold %d records, its report says %d", c.source, got, report.Acked.Records)
	}
	p.sent = firstOf(cfg.Seed, report.Sent.Records)
	t.add(c.source, p, camunda.Count{})
	return nil
}

func (t *truth) add(source string, p posted, e camunda.Count) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sources[source] = p
	t.exported.Add(e)
}

// abandoned are the records that their clients gave up.
func (t *truth) abandoned() (n int64) {
	for _, p := range t.sources {
		n += p.abandoned
	}
	for _, r := range t.anonymous.requests {
		if !r.acked {
			n += r.records
		}
	}
	return n
}

// firstOf is where the first n records of a seed are: they are made again.
func firstOf(seed uint64, n int64) []load.Range {
	g := load.NewGenerator(load.GeneratorConfig{Seed: seed})
	var all []load.Range
	var buf []byte
	for n > 0 {
		batch := min(n, 10_000)
		var ranges []load.Range
		buf, _, ranges = load.AppendBatch(buf[:0], g, int(batch))
		n -= batch
		all = load.Join(append(all, ranges...))
	}
	return all
}
