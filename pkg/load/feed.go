package load

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
)

type request struct {
	body   []byte // as sent
	plain  []byte // JSON; aliases body without compression
	zipped bytes.Buffer
	totals Totals

	authorization string    // the header
	key           string    // Idempotency-Key
	due           time.Time // zero: immediately
}

// poster is a source with its token.
type poster struct {
	authorization string
	records       Source
}

// feed yields the requests of a run.
type feed struct {
	cfg   Config
	began time.Time
	every time.Duration // interval of requests; 0: unlimited

	mu      sync.Mutex
	posters []poster // by token
	left    int64
	next    int64 // number of the next request
}

func newFeed(cfg Config) *feed {
	f := &feed{cfg: cfg, left: cfg.Records}
	if cfg.Source != nil {
		f.posters = []poster{{authorization(cfg.Token), cfg.Source}}
	} else {
		for i, token := range append([]string{cfg.Token}, cfg.Tokens...) {
			g := GeneratorConfig{Seed: cfg.Seed + uint64(i), Start: cfg.Start, Step: cfg.step(), After: cfg.After, Envelope: cfg.Envelope}
			f.posters = append(f.posters, poster{authorization(token), NewGenerator(g)})
		}
	}
	if cfg.Rate > 0 {
		f.every = time.Duration(float64(cfg.Batch) / cfg.Rate * float64(time.Second))
	}
	return f
}

// take builds the next request in r, which the caller owns until the next take. It returns
// nil at the end of the run.
func (f *feed) take(r *request) *request {
	f.mu.Lock()
	defer f.mu.Unlock()
	due := f.began.Add(time.Duration(f.next) * f.every)
	if f.cfg.Duration > 0 {
		end := f.began.Add(f.cfg.Duration)
		if f.every > 0 && !due.Before(end) || !time.Now().Before(end) {
			return nil
		}
	}
	if f.left <= 0 {
		return nil
	}
	if f.fill(r); r.totals.Records == 0 {
		return nil // the source has ended
	}
	r.due = time.Time{}
	if f.every > 0 {
		r.due = due
	}
	return r
}

// fill builds the next request. A batch of one is an object, not an array.
func (f *feed) fill(r *request) {
	n := int(min(f.left, int64(f.cfg.Batch)))
	of := f.posters[f.next%int64(len(f.posters))]
	r.authorization = of.authorization
	r.plain, r.totals = AppendBatch(r.plain[:0], of.records, n)
	r.body = r.plain
	if f.cfg.Batch == 1 {
		r.body = r.plain[1 : len(r.plain)-1]
	}
	// The key covers everything that decides the body. So no two bodies share a key, and a
	// repeated run is deduplicated.
	r.key = fmt.Sprintf("load-%x-%x-%d-%d", f.cfg.Seed, f.cfg.Start.UnixNano(), f.cfg.Batch, f.next)
	if f.left -= int64(n); r.totals.Records < int64(n) {
		f.left = 0
	}
	f.next++
}

// missed counts the records due before the end that were not sent.
func (f *feed) missed() int64 {
	if f.every == 0 || f.cfg.Duration == 0 {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	due := int64((f.cfg.Duration + f.every - 1) / f.every)
	return min(max(0, due-f.next)*int64(f.cfg.Batch), f.cfg.Records)
}

// zipper compresses bodies; a nil one does not.
type zipper struct{ w *gzip.Writer }

func newZipper(on bool) *zipper {
	if !on {
		return nil
	}
	w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // a valid level
	return &zipper{w}
}

func (z *zipper) compress(r *request) error {
	if z == nil {
		return nil
	}
	r.zipped.Reset()
	z.w.Reset(&r.zipped)
	if _, err := z.w.Write(r.body); err != nil {
		return fmt.Errorf("compress a body: %w", err)
	}
	if err := z.w.Close(); err != nil {
		return fmt.Errorf("compress a body: %w", err)
	}
	r.body = r.zipped.Bytes()
	return nil
}
