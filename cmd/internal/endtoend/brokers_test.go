package endtoend

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/pkg/load/camunda"
	"sluice/pkg/load/simulator"
	"sluice/pkg/programtest"
)

// brokerLog is the log of one partition.
type brokerLog struct {
	mu      sync.Mutex
	records [][]byte
	whole   bool
}

func (l *brokerLog) Len() (int, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.records), l.whole
}

func (l *brokerLog) Read(from, to int) ([][]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.records[from:min(to, len(l.records))], nil
}

func (l *brokerLog) write(records ...[]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, records...)
}

// restored is the log after a backup was restored: cut, and written on.
func (l *brokerLog) restored(keep int, records [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records[:keep:keep], records...)
}

func (l *brokerLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.whole = true
}

// byPartition are the records of an engine as brokers write them, without ids.
func byPartition(seed uint64, begin time.Time, first int64, count int) map[int64][][]byte {
	all := map[int64][][]byte{}
	for r := range simulator.New(simulator.Config{Seed: seed, Start: begin, First: first, Instances: count, Partitions: partitions, NoIDs: true}).All() {
		all[r.Partition] = append(all[r.Partition], slices.Clone(r.JSON))
	}
	return all
}

// TestBrokersThatFail lets the exporters of three partitions post as Camunda's
// do, at fifty times their pace, while brokers fail in every way, the api and
// NATS are killed, and in the end a backup is restored, so that positions are
// used again by other records. Everything is compared with a source of which
// each record was posted once.
func TestBrokersThatFail(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	file, tokens := s.tokensOf("once", "brokers")
	r := &resender{stack: s, tokens: map[string]string{"once": tokens[0], "brokers": tokens[1]}, apis: []string{s.http}}
	natsServer := s.startNATS()
	r.engine = s.startEngine()
	elastic := programtest.Address()
	startAPI := func() *process {
		return s.startAPIWith(file, "--duplicate-window", "1s", "--elasticsearch", elastic)
	}
	api := startAPI()
	r.startIngester()
	s.waitReady(r.ingester, s.ops, s.ingesterOps)

	now := time.Now().Add(-time.Hour)
	written := byPartition(11, now, 1, 30)
	to := &camunda.Client{URLs: []string{"http://" + elastic}, User: "production", Token: tokens[1]}
	logs, exporters := map[int64]*brokerLog{}, map[int64]*camunda.Exporter{}
	var mu sync.Mutex
	var did camunda.Count
	var running sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for p := int64(1); p <= partitions; p++ {
		logs[p] = &brokerLog{}
		e := camunda.New(camunda.Config{
			Partition: p, Log: logs[p], Random: rand.New(rand.NewPCG(7, uint64(p))),
			To:          to,
			BulkRecords: 100, BulkDelay: 100 * time.Millisecond, Backoff: 40 * time.Millisecond, BackoffMost: 200 * time.Millisecond,
			Followers: 300 * time.Millisecond, Snapshot: 2 * time.Second,
		})
		exporters[p] = e
		running.Go(func() {
			count, err := e.Run(ctx)
			if err != nil {
				t.Errorf("partition %d: %v", p, err)
			}
			mu.Lock()
			defer mu.Unlock()
			did.Add(count)
		})
	}

	// What is written comes in some steps, with failures between.
	const steps = 12
	for step := range steps {
		for p, records := range written {
			logs[p].write(records[len(records)*step/steps : len(records)*(step+1)/steps]...)
		}
		time.Sleep(50 * time.Millisecond) // most have something in their bulks
		for p, e := range exporters {
			e.Fail(camunda.Failure{Kind: []camunda.Kind{camunda.Unnoticed, camunda.Restarted, camunda.Unnoticed, camunda.RestartedOlder, camunda.LeaderChanged}[(step+int(p))%5]})
		}
		switch step {
		case 3:
			api.kill()
			api = startAPI()
		case 5:
			s.waitReady(api, s.ops) // since its own end
			natsServer.kill()
			began := time.Now()
			err := to.Bulk(ctx, fmt.Appendf(nil, "%s\n%s\n", `{"index":{"_id":"1-1"}}`, written[1][0]))
			if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "503") || took > 15*time.Second {
				t.Errorf("without NATS a bulk is answered %v after %v, want 503 soon: the client gives up after 30 s", err, took)
			}
			natsServer = s.startNATS()
		case 7:
			r.ingester.kill()
			r.startIngester()
		case 9:
			r.engine.kill()
			r.engine = r.startEngine()
		}
		time.Sleep(250 * time.Millisecond)
	}

	// All of it is there before the backup is restored: what a cut log had
	// exported stays.
	all := func(written map[int64][][]byte) (records []string) {
		for p := int64(1); p <= partitions; p++ {
			for _, record := range written[p] {
				records = append(records, string(record))
			}
		}
		return records
	}
	r.eventuallyQuery(time.Minute, "SELECT count() FROM flow.records WHERE source = 'brokers'", fmt.Sprint(len(all(written))))

	// The backup had four fifths of the log. What is written behind it has
	// positions and keys that were in use, and another time.
	again := map[int64][][]byte{}
	for p, records := range written {
		keep := len(records) * 4 / 5
		var last struct{ Position int64 }
		if err := json.Unmarshal(records[keep-1], &last); err != nil {
			t.Fatal(err)
		}
		again[p] = byPartition(12, now.Add(40*time.Minute), last.Position+1, 6)[p]
		logs[p].restored(keep, again[p])
		exporters[p].Fail(camunda.Failure{Kind: camunda.Restored, From: keep / 2})
		logs[p].end()
	}
	running.Wait()
	if did.Again == 0 || did.Late == 0 || did.Retries == 0 {
		t.Errorf("the exporters did %+v: nothing was shown", did)
	}

	truth := append(all(written), all(again)...)
	r.inOrder("once", truth, 200)
	r.settled("once")
	r.settled("brokers")
	r.stores("once", len(truth))
	r.stores("brokers", len(truth))
	for table, query := range r.contents() {
		// An exporter that begins again counts its sequences anew.
		query = strings.ReplaceAll(query, "tuple(* EXCEPT(source, received_at", `tuple(replaceRegexpOne(extra, '"sequence":[0-9]+', ''), * EXCEPT(extra, source, received_at`)
		want, err := r.query(fmt.Sprintf(query, "once"))
		if err != nil {
			t.Fatal(err)
		}
		r.is(table, fmt.Sprintf(query, "brokers"), want)
	}
	r.noDeadLetters()
}
