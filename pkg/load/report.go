package load

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"math/bits"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Report is the result of a run. As JSON, durations are seconds and sizes bytes.
type Report struct {
	Seed           uint64           `json:"seed"`
	Started        time.Time        `json:"started"`
	ElapsedSeconds float64          `json:"elapsed_seconds"` // to the last answer
	Sent           Totals           `json:"sent"`
	Acked          Totals           `json:"acked"`          // answered OK, so durable
	MissedRecords  int64            `json:"missed_records"` // due by Rate before the end, but not sent since no connection was free
	Batch          int              `json:"batch"`          // records per request
	Connections    int              `json:"connections"`
	Gzip           bool             `json:"gzip"`
	Rate           float64          `json:"rate"`            // target records per second; 0: unlimited
	RecordsPerSec  float64          `json:"records_per_sec"` // acknowledged
	BytesPerSec    float64          `json:"bytes_per_sec"`   // of JSON acknowledged
	WireBytes      int64            `json:"wire_bytes"`      // of acknowledged bodies, as sent
	Requests       int64            `json:"requests"`        // acknowledged
	Attempts       int64            `json:"attempts"`        // requests sent, every retry included
	Retries        int64            `json:"retries"`         // attempts after the first
	Failed         map[string]int64 `json:"failed_attempts"` // by status, "timeout", "connection" or "200 without OK"
	Latency        Latency          `json:"ack_latency"`     // of acknowledged requests, retries and their pauses included
	StoredSeconds  float64          `json:"stored_seconds"`  // until all were queryable; 0 if the run did not wait, or the wait failed
	StoredPerSec   float64          `json:"stored_per_sec"`  // acknowledged records, by StoredSeconds
	MeasuredUntil  string           `json:"measured_until"`  // end of the measurement of processes: LastAnswer, AllStored or NotStored
	Processes      []Usage          `json:"processes"`       // the load itself first
}

// Values of Report.MeasuredUntil.
const (
	LastAnswer = "the last answer"
	AllStored  = "all could be queried"
	NotStored  = "the run did not wait any longer for all to be stored"
)

// Latency is the time from a request's due time, without Rate from its first attempt, to
// its acknowledgement, in seconds.
type Latency struct {
	Mean float64 `json:"mean_seconds"`
	P50  float64 `json:"p50_seconds"`
	P90  float64 `json:"p90_seconds"`
	P99  float64 `json:"p99_seconds"`
	P999 float64 `json:"p999_seconds"`
	Max  float64 `json:"max_seconds"`
}

func (t *tally) report(cfg Config, began time.Time, elapsed time.Duration) Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := Report{
		Seed: cfg.Seed, Started: began, ElapsedSeconds: elapsed.Seconds(),
		Sent: t.sentSum, Acked: t.ackedSum,
		Batch: cfg.Batch, Connections: cfg.Connections, Gzip: cfg.Gzip, Rate: cfg.Rate,
		WireBytes: t.wire, Requests: t.requests, Attempts: t.attempts, Retries: t.attempts - t.started,
		Failed: maps.Clone(t.errors), MeasuredUntil: LastAnswer,
		Latency: Latency{
			Mean: t.latency.mean().Seconds(),
			P50:  t.latency.quantile(0.5).Seconds(),
			P90:  t.latency.quantile(0.9).Seconds(),
			P99:  t.latency.quantile(0.99).Seconds(),
			P999: t.latency.quantile(0.999).Seconds(),
			Max:  t.latency.max.Seconds(),
		},
	}
	if s := elapsed.Seconds(); s > 0 {
		r.RecordsPerSec, r.BytesPerSec = float64(t.ackedSum.Records)/s, float64(t.ackedSum.Bytes)/s
	}
	return r
}

func (r *Report) stored(after time.Duration, err error) {
	if err != nil {
		r.MeasuredUntil = NotStored
		return
	}
	r.StoredSeconds, r.MeasuredUntil = after.Seconds(), AllStored
	if s := after.Seconds(); s > 0 {
		r.StoredPerSec = float64(r.Acked.Records) / s
	}
}

func (r Report) WriteText(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "records\t%d acknowledged of %d sent in %.2f s (seed %d)\n", r.Acked.Records, r.Sent.Records, r.ElapsedSeconds, r.Seed)
	fmt.Fprintf(w, "rate\t%.0f rec/s, %.1f MB/s of JSON, %.1f MB/s on the wire\n", r.RecordsPerSec, r.BytesPerSec/1e6, float64(r.WireBytes)/max(r.ElapsedSeconds, 1e-9)/1e6)
	if r.Rate > 0 {
		fmt.Fprintf(w, "due\t%.0f rec/s, %d records were never sent because no connection was free\n", r.Rate, r.MissedRecords)
	}
	fmt.Fprintf(w, "requests\t%d of up to %d records on %d connections, %d retries\n", r.Requests, r.Batch, r.Connections, r.Retries)
	fmt.Fprintf(w, "ack\tp50 %s, p90 %s, p99 %s, p99.9 %s, max %s\n", ms(r.Latency.P50), ms(r.Latency.P90), ms(r.Latency.P99), ms(r.Latency.P999), ms(r.Latency.Max))
	fmt.Fprintf(w, "failed attempts\t%s\n", failedText(r.Failed))
	if r.StoredSeconds > 0 {
		fmt.Fprintf(w, "stored\t%.0f rec/s, all could be queried after %.2f s\n", r.StoredPerSec, r.StoredSeconds)
	}
	fmt.Fprintf(w, "processes\tmeasured from the first request until %s\n", r.MeasuredUntil)
	for _, p := range r.Processes {
		fmt.Fprintf(w, "%s\t%s\n", p.Name, p.text())
	}
	fmt.Fprintf(w, "stored if\t%s\n\tgives %s\n", r.Acked.Query(), strings.ReplaceAll(r.Acked.Row(), "\t", "  "))
	return w.Flush()
}

func (u Usage) text() string {
	s := fmt.Sprintf("%.2f CPU-s per million records, %.2f CPU-s in all, %d MiB resident, peak %d MiB (pid %d)",
		u.CPUSecondsPerMillion, u.CPUSeconds, u.RSSBytes>>20, u.PeakRSSBytes>>20, u.PID)
	if u.Error != "" {
		s += ": " + u.Error
	}
	return s
}

func failedText(failed map[string]int64) string {
	if len(failed) == 0 {
		return "none"
	}
	var parts []string
	for _, reason := range slices.SortedFunc(maps.Keys(failed), cmp.Compare[string]) {
		parts = append(parts, fmt.Sprintf("%d× %s", failed[reason], reason))
	}
	return strings.Join(parts, ", ")
}

func ms(seconds float64) string { return fmt.Sprintf("%.2f ms", seconds*1e3) }

// histogram counts durations in buckets of a relative width of 1/128.
type histogram struct {
	buckets [58 * halfBuckets]uint64
	count   uint64
	sum     time.Duration
	max     time.Duration
}

// halfBuckets is the number of buckets per power of two.
const halfBuckets = 128

func (h *histogram) record(d time.Duration) {
	d = max(0, d)
	h.buckets[bucketOf(uint64(d))]++
	h.count++
	h.sum += d
	h.max = max(h.max, d)
}

// quantile returns the quantile q of the durations, rounded up to the end of its bucket.
func (h *histogram) quantile(q float64) time.Duration {
	if h.count == 0 {
		return 0
	}
	rank := max(1, uint64(q*float64(h.count)+0.9999999))
	for i, n := range h.buckets {
		if n >= rank {
			return min(h.max, time.Duration(bucketEnd(i)))
		}
		rank -= n
	}
	return h.max
}

func (h *histogram) mean() time.Duration {
	if h.count == 0 {
		return 0
	}
	return h.sum / time.Duration(h.count)
}

// bucketOf returns a value's bucket. Values below 2*halfBuckets have their own; above,
// each power of two is divided into halfBuckets.
func bucketOf(v uint64) int {
	shift := max(0, bits.Len64(v)-bits.Len64(halfBuckets))
	return shift*halfBuckets + int(v>>shift)
}

func bucketEnd(i int) uint64 {
	shift := max(0, i/halfBuckets-1)
	return uint64(i-shift*halfBuckets+1)<<shift - 1
}

// bar is the progress bar of a run; inactive without a terminal.
type bar struct {
	shown *progressbar.ProgressBar // nil: inactive
	cfg   Config
}

func newBar(cfg Config) *bar {
	if !isTerminal(cfg.Progress) {
		return &bar{}
	}
	return &bar{cfg: cfg, shown: drawnBar(cfg)}
}

// drawnBar counts records, or tenths of a second if the run is bounded by time.
func drawnBar(cfg Config) *progressbar.ProgressBar {
	total := cfg.Records
	if total == math.MaxInt64 {
		total = int64(cfg.Duration / (100 * time.Millisecond))
	}
	return progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(cfg.Progress),
		progressbar.OptionSetWidth(30),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionClearOnFinish(),
	)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && f != nil && term.IsTerminal(int(f.Fd()))
}

// run draws until done is closed, then clears the line.
func (b *bar) run(done <-chan struct{}, t *tally) {
	if b.shown == nil {
		return
	}
	began := time.Now()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			b.shown.Finish() // errors of the terminal are ignored
			return
		case <-tick.C:
			b.draw(t, time.Since(began))
		}
	}
}

func (b *bar) draw(t *tally, elapsed time.Duration) {
	records, bytes := t.progress()
	seconds := elapsed.Seconds()
	b.shown.Describe(fmt.Sprintf("%.0f rec/s, %.1f MB/s", float64(records)/seconds, float64(bytes)/seconds/1e6))
	if b.cfg.Records == math.MaxInt64 {
		records = int64(elapsed / (100 * time.Millisecond))
	}
	b.shown.Set64(min(records, b.shown.GetMax64())) // as above
}
