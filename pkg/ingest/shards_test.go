package ingest_test

import (
	"encoding/json"
	"errors"
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
	"sluice/pkg/record"
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
				t.Fatalf("Check: got %v, want %q", err, with)
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
	lookAtReplicas(t, engines)
}

// lookAtReplicas takes the two engines for replicas of one shard. One has a row that the other lacks, then both have it,
// then one is away. It is the SQL of a cluster with replicas.
func lookAtReplicas(t *testing.T, engines [2]*clickhousetest.Engine) {
	t.Helper()
	open := func(cluster string) *warehouse.DB {
		db, err := warehouse.Open(warehouse.Config{URL: engines[0].URL("flow"), Cluster: cluster}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		fatal.If(t, err)
		t.Cleanup(func() { db.Close() })
		return db
	}
	db := open("replicas")
	const at = 1_763_700_000_000
	insert := func(i int) {
		clickhousetest.Exec(t, engines[i], fmt.Sprintf(`INSERT INTO flow.records_local (stored_at, lane, incarnation, stream_seq, stream_idx, source, partition_id, position, ts, key, record_type, value_type, intent)
			VALUES (now64(3), 5, 7, 3, 0, 's', 1, 8, fromUnixTimestamp64Milli(%d, 'UTC'), 9, 'EVENT', 'JOB', 'CREATED')`, at))
	}
	c, m := &record.Columns{}, &flow.Message{Topic: "flow.5.record", Lane: 5, Source: "s", Seq: 3, Incarnation: 7, Received: time.UnixMilli(at), Records: 1,
		Body: []byte(fmt.Sprintf(`[{"partitionId":1,"position":8,"timestamp":%d,"key":9,"recordType":"EVENT","valueType":"JOB","intent":"CREATED"}]`, at))}
	if bad, err := c.AppendGood(m); err != nil || len(bad) > 0 {
		t.Fatal(bad, err)
	}
	look := func() (text string, err error) {
		least, most, err := db.Visible(t.Context(), record.Block{Columns: c, To: 1})
		day := flow.SourceDay{Source: "s", Partition: 1, Day: flow.Day(at)}
		marks, failed := db.Marks(t.Context(), 5, 7, []flow.SourceDay{day})
		err = errors.Join(err, failed)
		for _, incarnation := range []uint64{0, 7} {
			of, seq, failed := db.Last(t.Context(), 5, incarnation)
			text, err = text+fmt.Sprintf(", last %d:%d", of, seq), errors.Join(err, failed)
		}
		listed, failed := db.Incarnations(t.Context(), 5, 6)
		known := 0
		err = errors.Join(err, failed, db.Known(t.Context(), c, []int{0}, "", func(id *flow.Identity) { known = int(id.Position) }))
		return fmt.Sprintf("%d to %d visible, %d counted, mark %d%s, incarnations %v, known %d", least, most, marks.Rows, marks.Last[day], text, listed, known), err
	}
	for _, tt := range []struct {
		name string
		do   func()
		want string
	}{
		{"none has it", func() {}, "0 to 0 visible, 0 counted, mark 0, last 0:0, last 7:0, incarnations [], known 0"},
		{"one has it", func() { insert(1) }, "0 to 1 visible, 1 counted, mark 8, last 7:3, last 7:3, incarnations [{7 3}], known 8"},
		{"both have it", func() { insert(0) }, "1 to 1 visible, 1 counted, mark 8, last 7:3, last 7:3, incarnations [{7 3}], known 8"},
	} {
		tt.do()
		got, err := look()
		fatal.If(t, err)
		expect.Equal(t, tt.name, tt.want, got)
	}
	least, most, err := open("main").Visible(t.Context(), record.Block{Columns: c, To: 1})
	fatal.If(t, err)
	expect.Equal(t, "rows of two shards of one replica", []uint64{2, 2}, []uint64{least, most})
	engines[1].Kill()
	if got, err := look(); err == nil {
		t.Errorf("without the other replica: %s", got)
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
