package ingest_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/load/simulator"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// twoShards are the two shards of a cluster, an engine process each.
func twoShards(t *testing.T) (engines [2]*clickhousetest.Engine) {
	t.Helper()
	var cluster []server.Shard
	for range engines {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		fatal.If(t, err)
		cluster = append(cluster, server.Shard{Address: l.Addr().String()})
		l.Close()
	}
	for i := range engines {
		engines[i] = clickhousetest.Start(t, func(c *server.Config) {
			c.Listen, c.AllowFiles, c.Cluster = cluster[i].Address, true, cluster
		})
	}
	return engines
}

// TestShardsGoAwayAndNothingIsLostOrDoubled: blocks of one lane are divided between two engines,
// over the wire. Each engine is killed once, and records are resent in other batches. Both
// together hold what a single engine would.
func TestShardsGoAwayAndNothingIsLostOrDoubled(t *testing.T) {
	t.Parallel()
	engines := twoShards(t)
	s := &site{t: t, nats: natstest.Start(t)}
	at := func(i int) *warehouse.DB {
		db, err := warehouse.Open(warehouse.Config{URL: engines[i].URL("flow"), Cluster: "main", Single: true}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		fatal.If(t, err)
		t.Cleanup(func() { db.Close() })
		return db
	}
	for i := range engines { // the second time nothing is left to do
		fatal.If(t, at(i).Migrate(t.Context()))
		fatal.If(t, at(i).Check(t.Context()))
	}
	opened := s.open("api")
	publisher := stream.NewPublisher(opened)
	stopA, check := s.ingesterToCheck("a", at(0))
	defer func() { stopA() }()

	simulated := simulator.New(simulator.Config{Seed: 5, Start: time.Date(2025, 11, 21, 5, 0, 0, 0, time.UTC), Every: 30 * time.Second, Instances: 12, Commands: true})
	var bodies []string
	for r, more := simulated.Next(); more; r, more = simulated.Next() {
		bodies = append(bodies, string(r.JSON))
	}
	published := 0
	publish := func(records []string, batch int) {
		t.Helper()
		for len(records) > 0 {
			n := min(batch, len(records))
			_, err := publisher.Publish(t.Context(), &flow.Submission{
				ID: strconv.Itoa(published), Hash: strconv.Itoa(published), Source: "engine", Received: time.Now(),
				Records: flow.Chunks{{Body: []byte("[" + strings.Join(records[:n], ",") + "]"), Records: n}},
			})
			fatal.If(t, err)
			records = records[n:]
			published++
		}
	}
	stored := func() {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			if lag, err := opened.Lag(t.Context()); err == nil && lag[0].Messages == 0 {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("not stored: %+v, %v; %v", lag, err, check(t.Context()))
			}
		}
	}
	fails := func(with string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			if err := check(t.Context()); err != nil && strings.Contains(err.Error(), with) {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("Check says %v, want %q", err, with)
			}
		}
	}
	third := len(bodies) / 3
	publish(bodies[:third], 50)
	stored()

	engines[1].Kill() // a shard without deduplication lookups
	publish(bodies[third:2*third], 50)
	publish(bodies[third/2:third], 70) // again, in other batches
	fails(engines[1].Addr())
	engines[1].Restart()
	stored()

	stopA()
	engines[0].Kill() // the shard with deduplication lookups; another ingester queries the other
	stopA, check = s.ingesterToCheck("b", at(1))
	publish(bodies[2*third:], 50)
	publish(bodies[:third], 90)
	fails(engines[0].Addr())
	engines[0].Restart()
	stored()
	publish(bodies[:2*third], 110)
	stored()
	stopA()

	var rows, counted, known, jobs, instances int
	for i, e := range engines {
		var n, unique, c, k, j, p int
		answer := clickhousetest.Exec(t, e, `SELECT count(), uniqExact(id), (SELECT sum(records) FROM flow.counts_1m_local), (SELECT sum(rows) FROM flow.sources_local),
			(SELECT uniqExact(key) FROM flow.jobs_local WHERE created_at IS NOT NULL), (SELECT uniqExact(process_instance_key) FROM flow.process_instances_local) FROM flow.records_local`)
		if _, err := fmt.Sscan(answer, &n, &unique, &c, &k, &j, &p); err != nil {
			t.Fatalf("%s: %v", answer, err)
		}
		expect.Not(t, n != unique || n < len(bodies)/4, "shard %d has %d rows, %d ids of %d records", i+1, n, unique, len(bodies))
		rows, counted, known, jobs, instances = rows+n, counted+c, known+k, jobs+j, instances+p
	}
	if rows != len(bodies) || counted != len(bodies) || known != len(bodies) {
		t.Errorf("both shards have %d rows, %d counted, %d known to flow.sources, of %d records", rows, counted, known, len(bodies))
	}
	var wantJobs, wantInstances = map[string]bool{}, map[string]bool{}
	for _, body := range bodies {
		r := decoded(t, body)
		if r.RecordType != "EVENT" {
			continue
		}
		if r.ValueType == "JOB" && r.Intent == "CREATED" {
			wantJobs[strconv.FormatInt(r.Key, 10)] = true
		}
		if r.ValueType == "PROCESS_INSTANCE" {
			wantInstances[strconv.FormatInt(r.Value.ProcessInstanceKey, 10)] = true
		}
	}
	expect.Not(t, jobs != len(wantJobs) || instances != len(wantInstances), "both shards have %d jobs and %d instances, want %d and %d", jobs, instances, len(wantJobs), len(wantInstances))
	for i := range engines { // the result of each
		if marks, err := at(i).Marks(t.Context(), 0, incarnationOf(t, opened), nil); err != nil || marks.Rows != uint64(len(bodies)) {
			t.Errorf("asked at shard %d, the lane has stored %d rows, %v, want %d", i+1, marks.Rows, err, len(bodies))
		}
	}
}

type decodedRecord struct {
	Key                           int64
	RecordType, ValueType, Intent string
	Value                         struct{ ProcessInstanceKey int64 }
}

func decoded(t *testing.T, body string) (r decodedRecord) {
	t.Helper()
	fatal.If(t, json.Unmarshal([]byte(body), &r))
	return r
}

func incarnationOf(t *testing.T, opened *stream.Stream) uint64 {
	t.Helper()
	p, err := stream.NewLaneStates(opened).Read(t.Context(), 0)
	fatal.If(t, err)
	return p.Incarnation()
}
