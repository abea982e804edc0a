package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/pkg/load"
	"sluice/pkg/load/simulator"
)

// giveUp ends the retries of a request whose records have no identity. It is
// well within the window in which a repeat is recognised, with what links and
// paused services may hold a copy of it back.
const giveUp = 45 * time.Second

// client is one way to post requests, each of other records. Every client is a
// source of its own.
type client struct {
	source string
	share  float64 // of all records
	cfg    load.Config
	after  float64 // of the run, it begins
}

// clients are all ways: they meet different paths of the stream.
func clients() []client {
	return []client{
		{source: "bulk", share: 0.32, cfg: load.Config{Batch: 500, Connections: 4}},
		{source: "large", share: 0.15, cfg: load.Config{Batch: 4000, Connections: 2}},                          // several pieces each
		{source: "small", share: 0.08, cfg: load.Config{Batch: 20, Connections: 4, Gzip: true, NoKey: true}},   // known again by their content
		{source: "single", share: 0.02, cfg: load.Config{Batch: 1, Connections: 64, Timeout: 3 * time.Second}}, // many of them in an entry
		{source: "late", share: 0.05, cfg: load.Config{Batch: 1000, Connections: 2, NoKey: true}, after: 0.15}, // has two lanes, and its requests are cut
	}
}

// cluster is a workflow engine, and how its exporters write what they send.
type cluster struct {
	source     string
	share      float64 // of all records, before they are sent again
	partitions int
	forms      []form
	brokers    bool // Camunda's: they post bulks, as written
}

// clusters send what they have sent again and again, cut into other requests.
// Their keys and positions are equal: all of them begin at 1.
func clusters() []cluster {
	return []cluster{
		{"engine-a", 0.12, 3, []form{asWritten, asWritten, sortedMembers, withoutID, otherSequence}, false},
		{brokerSource, 0.12, 3, nil, true},
		{"ids-only", 0.08, 2, []form{onlyID, onlyIDSorted}, false},
	}
}

// recordsOfInstance is how many records an instance of the simulator comes to.
const recordsOfInstance = 120

// anonymousSource posts records without any identity, anonymousShare of all.
const (
	anonymousSource = "anonymous"
	anonymousShare  = 0.04
)

// posting is who posts in a run.
type posting struct {
	clients   []client
	clusters  []cluster
	anonymous bool
}

// posts are all of them, or the brokers alone.
func (c Config) posts() posting {
	if c.Brokers {
		return posting{clusters: []cluster{{brokerSource, 1, 3, nil, true}}}
	}
	return posting{clients(), clusters(), true}
}

// sources are the names of all of them.
func (p posting) sources() []string {
	var names []string
	if p.anonymous {
		names = append(names, anonymousSource)
	}
	for _, c := range p.clients {
		names = append(names, c.source)
	}
	for _, e := range p.clusters {
		names = append(names, e.source)
	}
	return names
}

// truth is what was sent by all, and what of it was acknowledged.
type truth struct {
	mu        sync.Mutex
	sources   map[string]posted
	anonymous *anonymous
	exported  exported
}

// posted is what one source has sent.
type posted struct {
	sent, acked []load.Range
	abandoned   int64           // records
	counts      map[count]int64 // what its counters must come to; nil when that depends on what was abandoned
}

// post posts until the time is up and everything is answered or given up.
func (s *stage) post(ctx context.Context) (*truth, error) {
	t := &truth{sources: map[string]posted{}, anonymous: &anonymous{}}
	all := s.cfg.posts()
	seeds := rand.New(rand.NewPCG(s.cfg.Seed, 0x10ad))
	posting, ctx := errgroup.WithContext(ctx)
	for _, c := range all.clients {
		c.cfg.Seed = seeds.Uint64() | 1
		posting.Go(func() error { return s.postAs(ctx, c, t) })
	}
	for _, e := range all.clusters {
		seed := seeds.Uint64()
		posting.Go(func() error { return s.export(ctx, e, seed, t) })
	}
	if all.anonymous {
		t.anonymous = &anonymous{
			poster: newPoster(s.clientsAddr(), s.tokens[anonymousSource]), each: s.posters(anonymousSource),
			rate: s.cfg.Rate * anonymousShare, connections: 4, seed: seeds.Uint64(),
		}
		posting.Go(func() error { return t.anonymous.run(ctx, s.cfg.For) })
	}
	err := posting.Wait()
	s.journal.note("exporters: %d records acknowledged, %d of them again, after %d fall-backs and %d retries",
		t.exported.records, t.exported.again, t.exported.fallbacks, t.exported.retries)
	return t, err
}

// posters post to each of the apis.
func (s *stage) posters(source string) []*poster {
	var all []*poster
	for _, addr := range s.apiAddrs {
		all = append(all, newPoster(addr, s.tokens[source]))
	}
	return all
}

// clientsAddr is where all clients post.
func (s *stage) clientsAddr() string { return s.links[linkClients][0].addr() }

func (s *stage) postAs(ctx context.Context, c client, t *truth) error {
	file, err := os.Create(filepath.Join(s.dir, "acked-"+c.source))
	if err != nil {
		return err
	}
	defer file.Close()
	cfg := c.cfg
	cfg.URL, cfg.Token = "http://"+s.clientsAddr(), s.tokens[c.source]
	wait := time.Duration(c.after * float64(s.cfg.For))
	if !sleep(ctx, wait) {
		return ctx.Err()
	}
	cfg.Rate, cfg.Duration = s.cfg.Rate*c.share, s.cfg.For-wait
	cfg.GiveUp, cfg.Failures = giveUp, 1<<30
	if cfg.Timeout == 0 {
		cfg.Timeout = 8 * time.Second
	}
	cfg.Acked = file
	report, err := load.Run(ctx, cfg)
	if err != nil && !errors.Is(err, load.ErrNotAcknowledged) {
		return fmt.Errorf("post %s: %w", c.source, err)
	}
	s.journal.note("%s: %d records of %d acknowledged, %d retries, p50 %.0f ms, p99 %.0f ms, failed attempts %v", c.source, report.Acked.Records,
		report.Sent.Records, report.Retries, report.Latency.P50*1e3, report.Latency.P99*1e3, report.Failed)

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
	p.sent, err = firstOf(cfg.Seed, report.Sent.Records)
	t.add(c.source, p, exported{})
	return err
}

func (t *truth) add(source string, p posted, e exported) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sources[source] = p
	t.exported.add(e)
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

// export writes records into the logs of an engine and posts them as the
// exporters of its partitions do, until all are acknowledged.
func (s *stage) export(ctx context.Context, e cluster, seed uint64, t *truth) error {
	begin := time.Now()
	w, err := newSource(s.dir, e.source, simulator.Config{
		Seed: seed, Start: begin, Partitions: e.partitions, UnderWay: 200, Haste: 600, Commands: !e.brokers, NoIDs: e.brokers,
		Every: time.Duration(recordsOfInstance / (s.cfg.Rate * e.share) * float64(time.Second)),
	})
	if err != nil {
		return err
	}
	defer w.close()
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return w.write(ctx, begin.Add(s.cfg.For)) })
	var count exported
	work.Go(func() (err error) {
		if e.brokers {
			count, err = s.brokers(ctx, e, seed, w)
		} else {
			count, err = s.exporters(ctx, e, seed, w)
		}
		return err
	})
	err = work.Wait()
	wrote := w.wrote()
	t.add(e.source, posted{sent: wrote, acked: wrote, counts: w.counts}, count)
	return err
}

// exporters post the logs of a source to the api's own route.
func (s *stage) exporters(ctx context.Context, e cluster, seed uint64, w *source) (count exported, err error) {
	begin := time.Now()
	strays, abandon := context.WithCancel(ctx)
	defer abandon()
	var stragglers sync.WaitGroup
	work, ctx := errgroup.WithContext(ctx)
	p := newPoster(s.clientsAddr(), s.tokens[e.source])
	defer p.client.CloseIdleConnections()
	var mu sync.Mutex
	for partition, log := range w.logs {
		x := &exporter{
			post: func(ctx context.Context, body *bytes.Buffer) (bool, error) { return p.post(ctx, body, "") },
			log:  log, random: rand.New(rand.NewPCG(seed, uint64(partition))), forms: e.forms,
			until: begin.Add(s.cfg.For * 9 / 10), deepest: s.cfg.For / 3, mean: s.cfg.For / 5,
			strays: &stragglers, straggl: strays,
		}
		work.Go(func() error {
			err := x.run(ctx)
			mu.Lock()
			defer mu.Unlock()
			count.add(x.count)
			if err != nil {
				err = fmt.Errorf("export partition %d of %s: %w", partition, e.source, err)
			}
			return err
		})
	}
	err = work.Wait()
	abandon()
	stragglers.Wait()
	return count, err
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
