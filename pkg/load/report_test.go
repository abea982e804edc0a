package load_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/load"
)

func TestReportIsCompleteAsTextAndJSON(t *testing.T) {
	d := openDoor(t)
	child := exec.Command("sleep", "60")
	fatal.If(t, child.Start())
	defer child.Wait()
	defer child.Process.Kill()
	report, err := load.Run(t.Context(), load.Config{URL: d.URL, Records: 20_000, Batch: 200, Seed: 9,
		PIDs: map[string]int{"api": os.Getpid(), "idle": child.Process.Pid, "gone": 1 << 30}})
	fatal.If(t, err)
	var text bytes.Buffer
	fatal.If(t, report.WriteText(&text))
	for _, want := range []string{"20000 acknowledged of 20000 sent", "seed 9", "rec/s", "p99.9", "CPU-s per million", "idle", "none", report.Acked.Query(), "SELECT count()"} {
		expect.Not(t, !strings.Contains(text.String(), want), "the text lacks %q:\n%s", want, &text)
	}
	raw, err := json.Marshal(report)
	fatal.If(t, err)
	var read struct {
		Acked struct {
			Records int64  `json:"records"`
			KeySum  uint64 `json:"key_sum"`
		} `json:"acked"`
		Latency   load.Latency `json:"ack_latency"`
		Processes []load.Usage `json:"processes"`
	}
	fatal.If(t, json.Unmarshal(raw, &read))
	if read.Acked.Records != 20_000 || read.Acked.KeySum != report.Acked.KeySum {
		t.Errorf("JSON has %d records with key sum %d", read.Acked.Records, read.Acked.KeySum)
	}
	if diff := cmp.Diff(report.Latency, read.Latency); diff != "" {
		t.Errorf("latency (-report +json):\n%s", diff)
	}
	if l := report.Latency; !(0 < l.P50 && l.P50 <= l.P90 && l.P90 <= l.P99 && l.P99 <= l.P999 && l.P999 <= l.Max) {
		t.Errorf("quantiles are out of order: %+v", l)
	}
	checkProcesses(t, read.Processes)
}

func checkProcesses(t *testing.T, processes []load.Usage) {
	t.Helper()
	var names []string
	by := map[string]load.Usage{}
	for _, p := range processes {
		names = append(names, p.Name)
		by[p.Name] = p
	}
	expect.Equal(t, "processes", []string{"load", "api", "gone", "idle"}, names)
	if runtime.GOOS != "linux" {
		if p := by["api"]; !strings.Contains(p.Error, "Linux") {
			t.Errorf("a process that cannot be measured here is reported as %+v", p)
		}
		return
	}
	if p := by["api"]; p.Error != "" || p.CPUSeconds <= 0 || p.CPUSecondsPerMillion < p.CPUSeconds*49 || p.RSSBytes < 1<<20 || p.PeakRSSBytes < p.RSSBytes {
		t.Errorf("this process is measured as %+v", p)
	}
	if p := by["idle"]; p.Error != "" || p.CPUSeconds > 0.01 {
		t.Errorf("a process that sleeps is measured as %+v", p)
	}
	if p := by["gone"]; p.Error == "" {
		t.Errorf("a process that is not there is measured as %+v", p)
	}
}

func TestQuantilesAreNeverUnderstated(t *testing.T) {
	tests := []struct {
		name  string
		q     float64
		want  time.Duration // exact
		given func(i int) time.Duration
	}{
		{"median of 1 to 1000 ms", 0.5, 500 * time.Millisecond, func(i int) time.Duration { return time.Duration(i+1) * time.Millisecond }},
		{"99 % of 1 to 1000 ms", 0.99, 990 * time.Millisecond, func(i int) time.Duration { return time.Duration(i+1) * time.Millisecond }},
		{"99.9 % of 1 to 1000 µs", 0.999, 999 * time.Microsecond, func(i int) time.Duration { return time.Duration(i+1) * time.Microsecond }},
		{"the largest is exact", 1, 1000 * time.Hour, func(i int) time.Duration { return time.Duration(i+1) * time.Hour }},
		{"all the same", 0.5, 77777, func(int) time.Duration { return 77777 }},
		{"zero", 0.5, 0, func(int) time.Duration { return 0 }},
		{"a clock that went back counts as zero", 0.5, 0, func(int) time.Duration { return -time.Second }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var all []time.Duration
			for i := range 1000 {
				all = append(all, tt.given(i))
			}
			got := load.Quantiles(all, tt.q)[0]
			expect.Not(t, got < tt.want || float64(got) > float64(tt.want)*(1+1.0/128), "quantile is %s, want %s or up to 1/128 more", got, tt.want)
		})
	}
	expect.Equal(t, "the median of nothing", 0, load.Quantiles(nil, 0.5)[0])
	expect.Equal(t, "the longest duration", time.Duration(1<<63-1), load.Quantiles([]time.Duration{1<<63 - 1}, 0.5)[0])
}

func TestRetryAfterIsSecondsOrADate(t *testing.T) {
	now := time.Date(2025, 11, 21, 5, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "3": 3 * time.Second, "-3": 0, "soon": 0, "0": 0,
		"Fri, 21 Nov 2025 05:00:07 GMT": 7 * time.Second,
		"Fri, 21 Nov 2025 04:00:00 GMT": 0,
	} {
		if got := load.RetryAfter(value, now); got != want {
			t.Errorf("Retry-After %q is read as %s, want %s", value, got, want)
		}
	}
}

func TestProgressIsDrawnOnTerminalsOnly(t *testing.T) {
	var screen bytes.Buffer
	load.DrawBar(&screen, 1000, load.Totals{Records: 500, Bytes: 335_000}, time.Second)
	for _, want := range []string{"50%", "500 rec/s", "0.3 MB/s"} {
		if !strings.Contains(screen.String(), want) {
			t.Errorf("the bar does not show %q: %q", want, screen.String())
		}
	}
	d := openDoor(t)
	var pipe bytes.Buffer
	if _, err := load.Run(t.Context(), load.Config{URL: d.URL, Records: 1000, Progress: &pipe}); err != nil {
		t.Fatal(err)
	}
	if pipe.Len() > 0 {
		t.Errorf("%q was written to a pipe", pipe.String())
	}
}
