package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/pkg/load/camunda"
)

// brokerSource is the source whose brokers post bulks, as Camunda's exporters do.
const brokerSource = "engine-b"

// brokers post the logs of a source where the api speaks Elasticsearch, as the
// real ones would in times in which brokers fail too: partitions change their
// leaders, and brokers that were killed go on from snapshots, the older ones
// twice the time between two snapshots old.
func (s *stage) brokers(ctx context.Context, e cluster, seed uint64, w *source) (exported, error) {
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	defer client.CloseIdleConnections()
	to := &camunda.Client{URLs: []string{"http://" + s.links[linkExporters][0].addr()}, User: e.source, Token: s.tokens[e.source], HTTP: client}
	work, ctx := errgroup.WithContext(ctx)
	var mu sync.Mutex
	var sum camunda.Count
	for partition, log := range w.logs {
		random := rand.New(rand.NewPCG(seed, uint64(partition)))
		x := camunda.New(camunda.Config{
			Partition: partition, Log: log, To: to, Random: rand.New(rand.NewPCG(seed, uint64(-partition))),
			Snapshot: min(5*time.Minute, s.cfg.For/4),
		})
		failing, enough := context.WithTimeout(ctx, s.cfg.For*9/10)
		work.Go(func() error { s.failBrokers(failing, random, partition, x); return nil })
		work.Go(func() error {
			defer enough()
			count, err := x.Run(ctx)
			mu.Lock()
			defer mu.Unlock()
			sum.Add(count)
			if err != nil {
				err = fmt.Errorf("export partition %d of %s: %w", partition, e.source, err)
			}
			return err
		})
	}
	err := work.Wait()
	s.journal.note("brokers of %s: %d bulks, %d of leaders before, %d records, %d of them again", e.source, sum.Bulks, sum.Late, sum.Records, sum.Again)
	return exported{records: sum.Records, again: sum.Again, fallbacks: int(sum.Failures), retries: int(sum.Retries)}, err
}

// failBrokers lets the broker of a partition fail now and then.
func (s *stage) failBrokers(ctx context.Context, random *rand.Rand, partition int64, x *camunda.Exporter) {
	kinds := []camunda.Kind{camunda.LeaderChanged, camunda.Unnoticed, camunda.Restarted, camunda.RestartedOlder}
	for sleep(ctx, min(s.cfg.For/4, time.Duration(random.ExpFloat64()*float64(s.cfg.For/8)))) {
		kind := kinds[random.IntN(len(kinds))]
		x.Fail(camunda.Failure{Kind: kind})
		s.journal.note("the broker of partition %d: %v", partition, kind)
	}
}
