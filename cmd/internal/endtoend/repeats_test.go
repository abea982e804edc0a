package endtoend

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/auth"
	"sluice/pkg/dial"
	"sluice/pkg/flow"
	"sluice/pkg/load/simulator"
	"sluice/pkg/programtest"
	"sluice/pkg/stream"
)

// resender posts records of several engines to two apis, in whatever batches a
// test wants, and compares what became of them with an engine of which every
// record was posted once.
type resender struct {
	*stack
	apis     []string
	tokens   map[string]string // by source
	markers  atomic.Int64      // posted so far
	begun    time.Time         // when the records of now begin
	engine   *process
	ingester *process
}

func newResender(t *testing.T, sources ...string) *resender {
	s := newStack(t)
	r := &resender{stack: s, begun: time.Now().Add(-time.Hour), tokens: map[string]string{}, apis: []string{s.http, programtest.Address()}}
	var file strings.Builder
	for i, source := range sources {
		r.tokens[source] = auth.NewToken()
		entry := auth.Entry{Subject: fmt.Sprint("exporter-", i), Source: source, SHA256: auth.Digest(r.tokens[source]), Scopes: []flow.Scope{"records:write"}}
		file.WriteString(entry.Line() + "\n")
	}
	tokens := filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(tokens, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	s.startNATS()
	r.engine = s.startEngine()
	var ready []string
	for i, address := range r.apis {
		ops := programtest.Address()
		start(t, "api", "--http", address, "--ops", ops, "--nats", "nats://"+s.nats, "--tokens", tokens, "--duplicate-window", "1s", "--fingerprint-key", filepath.Join(t.TempDir(), fmt.Sprint("key", i)))
		ready = append(ready, ops)
	}
	r.startIngester()
	s.waitReady(r.ingester, append(ready, s.ingesterOps)...)
	return r
}

func (r *resender) startIngester() {
	r.ingester = r.stack.startIngester("--duplicate-window", "1s")
}

// postAs posts records of a source as one request, until it is acknowledged.
func (r *resender) postAs(source string, records []string) {
	r.insist(source, records, nil, func(http.Header) bool { return true })
}

// insist posts records of a source as one request, until it is acknowledged with
// headers that will do.
func (r *resender) insist(source string, records []string, header http.Header, will func(http.Header) bool) {
	body := "[" + strings.Join(records, ",") + "]"
	key := auth.NewToken() // a request of its own, although its bytes may have come before
	for n := 0; ; n++ {
		req, err := http.NewRequest(http.MethodPost, "http://"+r.apis[rand.IntN(len(r.apis))]+"/flow/flowRecord/batch", strings.NewReader(body))
		if err != nil {
			r.t.Error(err)
			return
		}
		maps.Copy(req.Header, header)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", r.tokens[source])
		req.Header.Set("Idempotency-Key", key)
		res, err := r.client.Do(req)
		if err == nil {
			answer, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode == http.StatusOK && will(res.Header) {
				return
			}
			err = fmt.Errorf("%s %v: %s", res.Status, res.Header, answer)
		}
		if n > 400 {
			r.t.Errorf("records of %s are not taken: %v", source, err)
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// inOrder posts every record once, in batches of n.
func (r *resender) inOrder(source string, records []string, n int) {
	for batch := range slices.Chunk(records, n) {
		r.postAs(source, batch)
	}
}

// overlapping posts records over 16 connections, cut anywhere and much of it
// several times.
func (r *resender) overlapping(source string, records []string, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	var batches [][]string
	for from := 0; from < len(records); {
		to := min(from+1+random.IntN(60), len(records))
		batches = append(batches, records[from:to])
		from = to - random.IntN(to-from) // 40 % of it again, more or less
		if from == to-1 && to == len(records) {
			break
		}
	}
	random.Shuffle(len(batches), func(i, j int) { batches[i], batches[j] = batches[j], batches[i] })
	queue := make(chan []string)
	var connections sync.WaitGroup
	for range 16 {
		connections.Go(func() {
			for batch := range queue {
				r.postAs(source, batch)
			}
		})
	}
	for _, batch := range batches {
		queue <- batch
	}
	close(queue)
	connections.Wait()
}

const (
	markerPosition = 1 << 40
	partitions     = 3
)

// settled waits until everything posted of a source so far is stored, in the tables
// and in what is made of them: a record of each partition, and so of each of its
// lanes, comes after it.
func (r *resender) settled(source string) {
	r.t.Helper()
	number := markerPosition + r.markers.Add(1)
	var markers []string
	for p := 1; p <= partitions; p++ {
		markers = append(markers, fmt.Sprintf(`{"partitionId":%d,"position":%d,"timestamp":%d,"valueType":"MARKER"}`, p, number, time.Now().UnixMilli()))
	}
	began := time.Now()
	r.insist(source, markers, http.Header{"Prefer": {"wait=20"}}, func(said http.Header) bool {
		return said.Get("Sluice-Stored") == "true" || time.Since(began) > time.Minute
	})
	r.is("markers of "+source, fmt.Sprintf("SELECT count() FROM flow.records WHERE source = '%s' AND value_type = 'MARKER' AND position = %d", source, number), fmt.Sprint(partitions))
}

// contents are queries that tell all that the tables hold of a source, beside
// markers and where and when it came in.
func (r *resender) contents() map[string]string {
	r.t.Helper()
	const place = "source, received_at, stored_at, lane, incarnation, stream_seq, stream_idx"
	queries := map[string]string{
		"records":   "SELECT count(), sum(cityHash64(toString(tuple(* EXCEPT(" + place + "))))) FROM flow.records WHERE source = '%s' AND value_type != 'MARKER'",
		"counts_1m": "SELECT sum(n), sum(cityHash64(toString((minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version, n)))) FROM (SELECT minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version, sum(records) AS n FROM flow.counts_1m WHERE source = '%s' AND value_type != 'MARKER' GROUP BY ALL)",
		"sources":   "SELECT sum(rows) - 3 * (SELECT uniqExact(position) FROM flow.records WHERE source = '%[1]s' AND value_type = 'MARKER') FROM flow.sources WHERE source = '%[1]s'",
	}
	folds, err := r.query(`SELECT arrayStringConcat(groupArray(name), ' ') FROM system.tables WHERE database = 'flow' AND engine = 'AggregatingMergeTree'
		AND name NOT IN ('sources', 'counts_1m') AND name IN (SELECT table FROM system.columns WHERE database = 'flow' AND name = 'source')`)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, fold := range strings.Fields(folds) {
		queries[fold] = "SELECT count(), sum(cityHash64(toString(tuple(* EXCEPT(source) " + inOrder[fold] + ")))) FROM flow." + fold + " FINAL WHERE source = '%s'"
	}
	return queries
}

// sameAs compares all that is known of a source, which is settled, with another one.
func (r *resender) sameAs(once, source string) {
	r.t.Helper()
	for table, query := range r.contents() {
		want, err := r.query(fmt.Sprintf(query, once))
		if err != nil {
			r.t.Fatal(err)
		}
		r.is(fmt.Sprintf("%s of %s, compared with %s", table, source, once), fmt.Sprintf(query, source), want)
	}
}

// is compares the answer to a query.
func (r *resender) is(what, query, want string) {
	r.t.Helper()
	if got, err := r.query(query); err != nil || got != want {
		r.t.Errorf("%s: got %s (%v), want %s", what, got, err, want)
	}
}

// stores checks how many rows, and how many counted records, a source has.
func (r *resender) stores(source string, want int) {
	r.t.Helper()
	for _, query := range []string{
		"SELECT count() FROM flow.records WHERE source = '%s' AND value_type != 'MARKER'",
		"SELECT sum(records) FROM flow.counts_1m WHERE source = '%s' AND value_type != 'MARKER'",
	} {
		r.is(source, fmt.Sprintf(query, source), fmt.Sprint(want))
	}
}

// engineAt are the records of an engine from a time on.
func engineAt(seed uint64, begin time.Time, first int64, instances int) (all []string) {
	for r := range simulator.New(simulator.Config{Seed: seed, Start: begin, First: first, Instances: instances, Partitions: partitions}).All() {
		all = append(all, string(r.JSON))
	}
	return all
}

// members changes the members of a record, and puts them in another order.
func members(t *testing.T, text string, change func(map[string]json.RawMessage)) string {
	t.Helper()
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	change(all)
	var b bytes.Buffer
	names := slices.Sorted(maps.Keys(all))
	slices.Reverse(names)
	for i, name := range names {
		if i > 0 {
			b.WriteString(" , ")
		}
		fmt.Fprintf(&b, "%q : %s", name, all[name])
	}
	return "{" + b.String() + "}"
}

// TestARecordIsStoredOnceHoweverItIsSent posts the same records in every way in
// which an engine may send them again, and compares tables, folds and counters
// with those of an engine that has sent each once. flow.records is read without
// FINAL.
func TestARecordIsStoredOnceHoweverItIsSent(t *testing.T) {
	t.Parallel()
	sources := []string{"once", "once by id", "overlap", "in one request", "odd members", "restart", "engine killed", "merged", "wiped", "mad", "by id", "placeholders"}
	r := newResender(t, sources...)
	months, recent := r.engines()
	all := append(slices.Clone(months), recent...)
	byID := func(records []string) (out []string) {
		for _, one := range records {
			out = append(out, members(t, one, func(m map[string]json.RawMessage) {
				delete(m, "partitionId")
				delete(m, "position")
			}))
		}
		return out
	}
	r.once("once", all)
	r.once("once by id", byID(all))

	var ways sync.WaitGroup
	way := func(name string, send func(t *testing.T)) { ways.Go(func() { t.Run(name, send) }) } // no t.Parallel: they would wait for all other tests
	way("in overlapping batches, over 16 connections and two apis", func(t *testing.T) {
		r.overlapping("overlap", all, 1)
		r.settled("overlap")
		r.sameAs("once", "overlap")
		r.overlapping("overlap", months, 2) // long after
		r.overlapping("overlap", all, 3)
		r.settled("overlap")
		r.sameAs("once", "overlap")
	})
	way("twice in one request", func(t *testing.T) {
		for batch := range slices.Chunk(all, 100) {
			r.postAs("in one request", append(slices.Clone(batch), batch...))
		}
		r.settled("in one request")
		r.sameAs("once", "in one request")
	})
	way("with and without the id, members in another order", func(t *testing.T) {
		r.overlapping("odd members", all, 4)
		var odd []string
		for _, one := range all {
			odd = append(odd, members(t, one, func(m map[string]json.RawMessage) { delete(m, "id") }))
		}
		r.overlapping("odd members", odd, 5)
		r.settled("odd members")
		r.sameAs("once", "odd members")
	})
	way("while the tables are merged", func(t *testing.T) {
		for seed := range uint64(3) {
			r.overlapping("merged", all, 20+seed)
			r.exec("OPTIMIZE TABLE flow.records FINAL")
			r.exec("OPTIMIZE TABLE flow.sources FINAL")
		}
		r.settled("merged")
		r.sameAs("once", "merged")
	})
	way("an engine that was wiped numbers anew", func(t *testing.T) {
		wiped := engineAt(3, r.begun.Add(30*time.Minute), 1, 12)
		r.overlapping("wiped", recent, 40)
		r.overlapping("wiped", wiped, 41)
		r.overlapping("wiped", append(slices.Clone(wiped), recent...), 42)
		r.settled("wiped")
		r.stores("wiped", len(recent)+len(wiped))
	})
	way("a mad client posts the highest position there is", func(t *testing.T) {
		mad := fmt.Sprintf(`{"partitionId":1,"position":%d,"timestamp":%d,"valueType":"MARKER"}`, int64(math.MaxInt64), r.begun.UnixMilli())
		r.postAs("mad", []string{mad})
		r.overlapping("mad", all, 50)
		r.postAs("mad", []string{mad})
		r.overlapping("mad", all, 51)
		r.settled("mad")
		for table, query := range r.contents() {
			if table == "sources" {
				continue // the mad record counts as a marker
			}
			want, err := r.query(fmt.Sprintf(query, "once"))
			if err != nil {
				t.Fatal(err)
			}
			r.is(table, fmt.Sprintf(query, "mad"), want)
		}
		r.is("the mad record", fmt.Sprintf("SELECT count() FROM flow.records WHERE source = 'mad' AND position = %d", int64(math.MaxInt64)), "1")
	})
	way("placeholders and records without identity are as many as were sent", func(t *testing.T) {
		none := []string{
			`{"key":7}`, `{"key":7}`, `{"partitionId":1,"position":-1,"key":-1}`, `{"partitionId":1,"position":-1,"key":-1}`,
			`{"partitionId":1,"position":0,"timestamp":1763700000000}`, `{"partitionId":0,"position":5,"timestamp":1763700000000}`,
			`{"partitionId":1,"position":5}`, `{"partitionId":1,"position":5,"timestamp":17}`,
		}
		r.postAs("placeholders", none)
		r.postAs("placeholders", none)
		r.settled("placeholders")
		r.exec("OPTIMIZE TABLE flow.records FINAL")
		r.stores("placeholders", 2*len(none))
	})
	ways.Wait()

	t.Run("after a restart and a takeover of the ingester", func(t *testing.T) {
		r.overlapping("restart", all[:len(all)/2], 6)
		if code := r.ingester.stop(); code != 0 {
			t.Errorf("the ingester stopped with exit %d", code)
		}
		r.startIngester()
		r.overlapping("restart", all, 7)
		r.ingester.kill()
		r.overlapping("restart", all[len(all)/3:], 8)
		r.startIngester()
		r.overlapping("restart", all, 9)
		r.settled("restart")
		r.sameAs("once", "restart")
	})
	t.Run("after ClickHouse was killed in mid-insert", func(t *testing.T) {
		for seed := range uint64(3) {
			killed := make(chan struct{})
			go func() {
				defer close(killed)
				time.Sleep(time.Duration(150+130*seed) * time.Millisecond)
				r.engine.kill()
			}()
			r.overlapping("engine killed", all, 10+seed)
			<-killed
			r.engine = r.startEngine()
		}
		r.settled("engine killed")
		r.sameAs("once", "engine killed")
	})
	t.Run("known by id and content", func(t *testing.T) {
		r.overlapping("by id", byID(all), 30)
		r.ingester.kill()
		r.startIngester()
		r.overlapping("by id", byID(all), 31)
		r.settled("by id")
		r.sameAs("once by id", "by id")
		// Equal id, other content.
		r.postAs("by id", []string{`{"id":"job-7","intent":"CREATED"}`, `{"id":"job-7","intent":"COMPLETED"}`, `{"intent":"CREATED", "id":"job-7"}`})
		r.settled("by id")
		r.stores("by id", len(all)+2)
	})
	r.noDeadLetters()
}

// TestARecordIsStoredOnceWhereverItGoes does the same with records that go to other
// lanes than those that had them before, and to an ingester that cannot know them.
func TestARecordIsStoredOnceWhereverItGoes(t *testing.T) {
	t.Parallel()
	r := newResender(t, "once", "overlap", "lanes")
	months, recent := r.engines()
	all := append(slices.Clone(months), recent...)
	r.once("once", all)
	r.overlapping("overlap", all, 1)

	t.Run("while and after a lane is added", func(t *testing.T) {
		added := make(chan struct{})
		go func() {
			defer close(added)
			time.Sleep(100 * time.Millisecond)
			r.sluice(0, "lanes", "add", "--nats", "nats://"+r.nats)
		}()
		r.overlapping("lanes", all, 60)
		<-added
		r.overlapping("lanes", all, 61)
		r.overlapping("overlap", all, 62)
		r.settled("lanes")
		r.settled("overlap")
		r.sameAs("once", "lanes")
		r.sameAs("once", "overlap")
	})
	t.Run("while and after a source is spread over lanes, with ClickHouse away", func(t *testing.T) {
		r.engine.kill()
		done := r.spread("lanes", 0, 1)
		r.overlapping("overlap", all, 70) // the others are not refused
		r.engine = r.startEngine()
		r.overlapping("lanes", all, 71)
		<-done
		r.overlapping("lanes", all, 72)
		r.settled("lanes")
		r.sameAs("once", "lanes")
		r.is("lanes that the source went to", "SELECT uniqExact(lane) FROM flow.records WHERE source = 'lanes'", "2")
		more := append(slices.Clone(all), engineAt(4, r.begun.Add(40*time.Minute), 2_000_000, 8)...)
		r.overlapping("once", more, 73)
		r.overlapping("lanes", more, 74)
		<-r.spread("lanes", 0) // and back: what lane 0 knew of it before must not count
		r.overlapping("lanes", more, 75)
		r.settled("once")
		r.settled("lanes")
		r.stores("once", len(more))
		r.sameAs("once", "lanes")
	})
	t.Run("flow.sources was truncated", func(t *testing.T) {
		r.exec("TRUNCATE TABLE flow.sources")
		r.ingester.kill()
		r.startIngester()
		r.halted(r.ingester, "flow.sources is missing rows")
		before, err := r.query("SELECT count() FROM flow.records")
		if err != nil {
			t.Fatal(err)
		}
		for _, statement := range statementsOf(t, "flow.sources is missing rows") {
			r.exec(statement)
		}
		r.waitReady(r.ingester, r.ingesterOps)
		r.overlapping("overlap", all, 80)
		r.settled("overlap")
		r.is("rows after all was sent again, but for the markers", fmt.Sprint("SELECT count() - ", partitions, " FROM flow.records"), before)
	})
	r.noDeadLetters()
}

// engines are what two engines have sent: one in earlier months, one lately.
func (r *resender) engines() (months, recent []string) {
	return engineAt(1, r.begun.AddDate(0, -7, 0), 1_000_000, 4), engineAt(2, r.begun, 1, 12)
}

// once posts records of a source in order, each once.
func (r *resender) once(source string, records []string) {
	r.t.Helper()
	r.inOrder(source, records, 50)
	r.settled(source)
	r.stores(source, len(records))
}

// spread moves a source to other lanes, as sluice lanes spread does, which
// would wait for a duplicate window of two minutes.
func (r *resender) spread(source string, lanes ...int) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		log, reg := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
		nc, err := dial.Connect(dial.Config{URL: "nats://" + r.nats, Name: "operator"}, log, reg)
		if err != nil {
			r.t.Error(err)
			return
		}
		defer nc.Close()
		s, err := stream.Open(r.t.Context(), nc, stream.Config{DuplicateWindow: time.Second}, log, reg)
		if err == nil {
			err = s.Spread(r.t.Context(), stream.Spreading{Source: source, Lanes: lanes, Say: r.t.Logf})
		}
		if err != nil {
			r.t.Error(err)
		}
	}()
	return done
}

// statementsOf are the SQL statements of a section of docs/runbooks/lanes.md.
func statementsOf(t *testing.T, section string) (all []string) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/runbooks/lanes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(page), "## "+section)
	_, after, fenced := strings.Cut(after, "```sql\n")
	sql, _, closed := strings.Cut(after, "```")
	if !found || !fenced || !closed {
		t.Fatalf("docs/runbooks/lanes.md has no statements about %q", section)
	}
	for statement := range strings.SplitSeq(sql, ";\n") {
		if statement = strings.TrimSpace(statement); statement != "" {
			all = append(all, statement)
		}
	}
	return all
}

// inOrder sorts the sets of a fold: how they lie depends on what came first.
var inOrder = map[string]string{
	"process_instances": "REPLACE(arraySort(processes) AS processes, arraySort(incident_keys) AS incident_keys, arraySort(resolved_incident_keys) AS resolved_incident_keys, arraySort(job_failures) AS job_failures)",
	"jobs":              "REPLACE(arraySort(failed) AS failed, arraySort(timed_out) AS timed_out, arraySort(errors_thrown) AS errors_thrown)",
	"variables":         "REPLACE(arraySort(updates) AS updates)",
}
