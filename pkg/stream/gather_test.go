package stream_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/stream"
)

// perSecond lets 64 clients publish for a while, each with one in flight. It returns the
// acknowledged publishes per second.
func perSecond(t *testing.T, d time.Duration, publish func(id string) error) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var acked atomic.Int64
	var wg sync.WaitGroup
	begun := time.Now()
	for client := range 64 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if err := publish(fmt.Sprintf("%d-%d-%d", begun.UnixNano(), client, n)); err != nil {
					t.Error(err)
					return
				}
				acked.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(acked.Load()) / time.Since(begun).Seconds()
}

// TestManySmallOnesShareASync compares 64 clients of single records through a Publisher with 64
// that sync one by one, in the same run.
func TestManySmallOnesShareASync(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	js, err := jetstream.New(w.nc)
	fatal.If(t, err)
	body := chunksOf(submission("x", 600))[0].Body
	var grouped, single float64
	for range 3 { // alternating: the disk also serves other processes
		single += perSecond(t, 500*time.Millisecond, func(id string) error {
			_, err := js.Publish(context.Background(), "flow.0.record", body, jetstream.WithMsgID(id))
			return err
		})
		grouped += perSecond(t, 500*time.Millisecond, func(id string) error {
			sub := submission(id)
			sub.Records = submission("x", 600).Records
			_, err := p.Publish(context.Background(), sub)
			return err
		})
	}
	ratio := grouped / single
	records := value(t, w.reg, "sluice_stream_records_total", nil)
	entries := value(t, w.reg, "sluice_stream_messages_total", nil)
	t.Logf("acknowledged per second: %.0f one by one, %.0f in entries, %.1f times as many; %.1f requests per entry",
		single/3, grouped/3, ratio, records/entries)
	// The speedup depends on the duration of a sync; the number of requests that share
	// a sync does not.
	expect.Not(t, records/entries < 16, "%.1f requests share an entry, want at least 16", records/entries)
	expect.Not(t, ratio <= 1, "entries are %.1f times as fast, want more than once", ratio)
}

// TestAnEntryWaitsForClientsJustAnswered: as many as were answered, beside those that wait; after a
// large entry for none.
func TestAnEntryWaitsForClientsJustAnswered(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	p := w.publisher()
	queued, release := p.Hold()
	var clients sync.WaitGroup
	post := func(n int) {
		clients.Go(func() {
			_, err := p.Publish(t.Context(), submission(fmt.Sprint("client-", n), 600))
			expect.NoError(t, err)
		})
		for queued() < n {
			time.Sleep(time.Millisecond)
		}
	}
	post(1) // while the entry before was in flight
	arrived := p.Expect(2, 600)
	for n, want := range []bool{false, false, true} {
		expect.Equal(t, fmt.Sprint("the wait ends at ", n+1, " requests"), want, arrived())
		post(n + 2)
	}
	expect.Equal(t, "without a wait", true, p.Expect(1, 1<<20)())
	release()
	clients.Wait()
	expect.Equal(t, "entries", 1.0, value(t, w.reg, "sluice_stream_messages_total", nil))
}

// value sums the series of a metric that have these labels.
func value(t testing.TB, reg *prometheus.Registry, name string, labels map[string]string) float64 {
	t.Helper()
	families, err := reg.Gather()
	fatal.If(t, err)
	var sum float64
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			found := 0
			for _, l := range m.GetLabel() {
				if want, ok := labels[l.GetName()]; ok && want == l.GetValue() {
					found++
				}
			}
			if found == len(labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func TestEveryPublishIsCounted(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 1 << 20})
	p := w.publisher()
	other := submission("one", 10)
	other.Hash = "another"
	for _, sub := range []string{"one", "one", "two"} {
		if _, err := p.Publish(t.Context(), submission(sub, 10, 20)); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = p.Publish(t.Context(), other)
	_, _ = p.Publish(t.Context(), submission("large", 17<<20))
	_, _ = p.Publish(t.Context(), submission("full", 900<<10, 900<<10))
	_, _ = p.Publish(t.Context(), submission("", 10))
	for outcome, want := range map[string]float64{
		"stored": 2, "replayed": 1, "key_reused": 1, "too_large": 1, "full": 1, "failed": 1, "busy": 0, "unavailable": 0,
	} {
		if got := value(t, w.reg, "sluice_stream_publishes_total", map[string]string{"outcome": outcome}); got != want {
			t.Errorf("%s: got %v, want %v", outcome, got, want)
		}
	}
	for name, want := range map[string]float64{
		"sluice_stream_messages_total": 3, "sluice_stream_records_total": 5, "sluice_stream_bytes_total": 60 + 900<<10,
	} {
		if got := value(t, w.reg, name, nil); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

func TestRetryAfterIsTheRateOfPurging(t *testing.T) {
	for name, c := range map[string]struct {
		need int
		seen [][2]int // seconds, first sequence
		want time.Duration
	}{
		"just started":                    {1000, [][2]int{{0, 1}}, 10 * time.Second},
		"nothing freed yet":               {1000, [][2]int{{0, 1}, {30, 1}}, 10 * time.Second},
		"nothing freed for a minute":      {1000, [][2]int{{0, 1}, {61, 1}}, time.Minute},
		"a thousand bytes in ten seconds": {500, [][2]int{{0, 1}, {10, 11}}, 5 * time.Second},
		"fast":                            {500, [][2]int{{0, 1}, {10, 10_001}}, time.Second},
		"slow":                            {1 << 20, [][2]int{{0, 1}, {10, 11}}, time.Minute},
		"long ago":                        {500, [][2]int{{0, 1}, {10, 1001}, {400, 1001}, {500, 1001}}, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, "result", c.want, stream.FreeAfter(c.need, c.seen...))
		})
	}
}

// TestOneAfterMany: an entry after one of many contains nothing of it.
func TestOneAfterMany(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for n := range 3 {
				if _, err := p.Publish(t.Context(), submission(fmt.Sprintf("many-%d-%d", i, n), 10)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for n := range 3 {
		if _, err := p.Publish(t.Context(), submission(fmt.Sprintf("one-%d", n), 10)); err != nil {
			t.Fatal(err)
		}
	}
	list := w.all(0)
	fatal.When(t, len(list) != 64*3+3, "the lane holds %d messages, want %d", len(list), 64*3+3)
	for n, m := range list[64*3:] {
		if want := submission(fmt.Sprintf("one-%d", n), 10); m.ID != want.ID || string(m.Body) != string(chunksOf(want)[0].Body) {
			t.Errorf("got %s of %d bytes, want %s", m.ID, len(m.Body), want.ID)
		}
	}
}
