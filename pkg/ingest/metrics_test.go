package ingest_test

import (
	"fmt"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/ingest"
)

func newRegistry() *prometheus.Registry { return prometheus.NewPedanticRegistry() }

func (p *process) startWith(t *testing.T, cfg ingest.Config, reg *prometheus.Registry) (*ingest.Ingester, func() error) {
	return p.start(t, cfg, p.deps(), reg)
}

func scrape(t *testing.T, reg *prometheus.Registry) string {
	t.Helper()
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	if answer.Code != 200 {
		t.Fatal(answer.Body)
	}
	return answer.Body.String()
}

func sample(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	for line := range strings.Lines(scrape(t, reg)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			fatal.If(t, err)
			return v
		}
	}
	t.Fatalf("no sample %s in\n%s", name, scrape(t, reg))
	return 0
}

func TestEverythingThatMovesIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, want := scene()
		reg := newRegistry()
		_, stop := (&process{world: w, name: "a"}).startWith(t, small, reg)
		time.Sleep(time.Minute)
		for name, want := range map[string]int{
			"messages_total":      len(w.messages),
			"rows_total":          len(want.Table),
			"dead_letters_total":  len(want.Dead),
			"checkpoint_sequence": int(want.Done),
			"state":               0,
			"lag_seconds":         0,
		} {
			if got := sample(t, reg, fmt.Sprintf(`sluice_ingest_%s{lane="0"}`, name)); got != float64(want) {
				t.Errorf("%s is %v, want %d", name, got, want)
			}
		}
		if got := sample(t, reg, "sluice_ingest_changes_total"); got != float64(len(want.Changes)) {
			t.Errorf("changes_total is %v, want %d", got, len(want.Changes))
		}
		const refused = 2 // by the warehouse: they were decoded, and count
		if got := sample(t, reg, "sluice_ingest_freshness_seconds_count"); got != float64(len(want.Table)+refused) {
			t.Errorf("freshness counts %v records, want %d", got, len(want.Table)+refused)
		}
		stop()
		if text := scrape(t, reg); strings.Contains(text, `sluice_ingest_state{`) || !strings.Contains(text, `sluice_ingest_rows_total{lane="0"}`) {
			t.Errorf("a released lane keeps its counters and loses its gauges:\n%s", text)
		}
		if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
			t.Errorf("metrics: %v, %v", problems, err)
		}
	})
}

func TestLagIsTheAgeOfTheOldestThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		paced(w, 10*time.Second)
		reg := newRegistry()
		_, stop := (&process{world: w, name: "a"}).startWith(t, ingest.Config{}, reg)
		w.publish(message(rec("1")))
		time.Sleep(4 * time.Second)
		w.publish(message(rec("2")))
		time.Sleep(4 * time.Second)
		const name = `sluice_ingest_lag_seconds{lane="0"}`
		expect.Equal(t, "lag is s after 8 s of an insert", 8, sample(t, reg, name))
		time.Sleep(4 * time.Second)
		expect.Equal(t, "lag is s when the second message waits for 8 s", 8, sample(t, reg, name))
		time.Sleep(20 * time.Second)
		expect.Equal(t, "lag is s when nothing waits", 0, sample(t, reg, name))
		stop()
	})
}

func TestATableThatLostRecordsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.publish(message(rec("1")), message(rec("2")), message(rec("3")))
		w.run(t, small, time.Minute)
		w.rows = w.rows[:1] // an operator deleted the others
		w.table = map[place]int{{1, 0}: 1}
		reg := newRegistry()
		_, stop := (&process{world: w, name: "b"}).startWith(t, small, reg)
		time.Sleep(time.Second)
		expect.Equal(t, "messages are reported missing", 2, sample(t, reg, `sluice_ingest_table_missing_messages{lane="0"}`))
		stop()
	})
}

func TestTheHeartbeatStopsOnlyWithTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		var last atomic.Int64
		var ended atomic.Bool
		silent := func() time.Duration {
			synctest.Wait()
			return time.Since(time.Unix(0, last.Load()))
		}
		_, stop := w.startIngester(t, ingest.Config{Heartbeat: func(loop string) (func(), func()) {
			if loop != "lane 0" {
				return func() {}, func() {}
			}
			return func() { last.Store(time.Now().UnixNano()) }, func() { ended.Store(true) }
		}})
		time.Sleep(10 * time.Minute)
		if d := silent(); d > 2*time.Second {
			t.Errorf("an idle loop was silent for %s", d)
		}
		paced(w, time.Hour)
		w.publish(message(rec("1")))
		time.Sleep(10 * time.Minute)
		if d := silent(); d < 9*time.Minute {
			t.Errorf("a loop that hangs in an insert beat %s ago", d)
		}
		time.Sleep(time.Hour)
		stop()
		expect.Not(t, !ended.Load(), "the heartbeat was not ended with the loop")
	})
}
