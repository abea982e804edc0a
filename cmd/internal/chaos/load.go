package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load"
	"sluice/pkg/load/camunda"
)

// posting lists the clients of a run.
type posting struct {
	clients   []client
	engines   []engine
	anonymous bool
	trickles  []trickle
	fields    bool          // a dataset tool changes fields
	giveUp    time.Duration // ends the retries of a request
}

// giveUp ends the retries of a request whose records have no identity. Links and paused
// processes may delay a copy further; the sum is well below the deduplication window.
const giveUp = 45 * time.Second

// client posts each record in one request. Every client is a source of its own.
type client struct {
	source string
	share  float64 // of all records
	cfg    load.Config
	after  float64 // start, as a share of the run
}

// engine is a workflow engine whose exporters resend records, cut into other requests.
// Keys and positions of all engines begin at 1.
type engine struct {
	source     string
	share      float64 // of all records, resent ones excluded
	partitions int
	forms      []form // of the api's own route; none: bulks, as Camunda's exporters write them
}

// anonymousSource posts records without identity.
const (
	anonymousSource = "anonymous"
	anonymousShare  = 0.04
)

// posts returns all clients, or only brokers. Clients take different paths through the stream.
func (c Config) posts() posting {
	if c.Brokers {
		return posting{engines: []engine{{"engine-b", 1, 3, nil}}}
	}
	return posting{
		trickles: c.trickles(),
		clients: []client{
			{source: "bulk", share: 0.32, cfg: load.Config{Batch: 500, Connections: 4}},
			{source: "large", share: 0.15, cfg: load.Config{Batch: 4000, Connections: 2}},                          // several messages each
			{source: "small", share: 0.08, cfg: load.Config{Batch: 20, Connections: 4, Gzip: true, NoKey: true}},   // deduplicated by content
			{source: "single", share: 0.02, cfg: load.Config{Batch: 1, Connections: 64, Timeout: 3 * time.Second}}, // many requests in an entry
			{source: "late", share: 0.05, cfg: load.Config{Batch: 1000, Connections: 2, NoKey: true}, after: 0.15}, // on two lanes: requests are cut
		},
		engines: []engine{
			{"engine-a", 0.12, 3, []form{asWritten, sortedMembers, withoutID}},
			{"engine-b", 0.12, 3, nil},
			{"ids-only", 0.08, 2, []form{onlyID, onlyIDSorted}},
		},
		anonymous: true, giveUp: giveUp,
	}
}

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
	for _, t := range p.trickles {
		names = append(names, t.sources...)
	}
	return names
}

// post posts until the time is up and every request is acknowledged or abandoned. The
// ledgers list the records.
func (s *site) post(ctx context.Context, all posting) (exported camunda.Count, err error) {
	seeds := rand.New(rand.NewPCG(s.cfg.Seed, 0x10ad))
	work, ctx := errgroup.WithContext(ctx)
	for _, c := range all.clients {
		c.cfg.Seed, c.cfg.GiveUp = seeds.Uint64()|1, all.giveUp
		work.Go(func() error { return s.postAs(ctx, c) })
	}
	var mu sync.Mutex
	for _, e := range all.engines {
		seed := seeds.Uint64()
		work.Go(func() error {
			count, err := s.export(ctx, e, seed)
			mu.Lock()
			defer mu.Unlock()
			exported.Add(count)
			return err
		})
	}
	if all.anonymous {
		anonymous := s.newAnonymous(seeds.Uint64())
		work.Go(func() error { return anonymous.run(ctx, s.cfg.For) })
	}
	for _, c := range all.trickles {
		work.Go(func() error { return s.trickle(ctx, c) })
	}
	if all.fields {
		work.Go(func() error { return s.changeFields(ctx, all.giveUp) })
	}
	err = work.Wait()
	s.journal.note("exporters: %+v", exported)
	return exported, err
}

func (s *site) postAs(ctx context.Context, c client) error {
	wait := time.Duration(c.after * float64(s.cfg.For))
	if !deployment.Sleep(ctx, wait) {
		return ctx.Err()
	}
	cfg := c.cfg
	cfg.URL, cfg.Token, cfg.Posted = s.URL, s.Tokens[c.source], s.ledgers[c.source].note
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
	return nil
}

// abandoned returns the number of records that clients stopped retrying.
func (s *site) abandoned() (n int64) {
	for _, l := range s.ledgers {
		n += l.abandoned
	}
	return n
}
