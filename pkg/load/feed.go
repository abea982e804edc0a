package load

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
)

// request is one body to be posted, and what to expect of it.
type request struct {
	body   []byte // as it goes over the wire
	plain  []byte // JSON; the memory of body when nothing is compressed
	zipped bytes.Buffer
	totals Totals

	authorization string    // the header
	key           string    // Idempotency-Key
	due           time.Time // when it should be sent; zero means at once
}

// poster is a source, and what it is posted under.
type poster struct {
	authorization string
	records       Source
}

// feed hands out the requests of a run, one after the other.
type feed struct {
	cfg   Config
	began time.Time
	every time.Duration // between two requests; 0 means no pace

	mu      sync.Mutex
	posters []poster // of each token
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

// take gives a connection its next request, made in the memory of r; nil when the run is
// over. The caller owns it until it takes another one.
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

// fill makes the next request. A batch of one is an object, not an array.
func (f *feed) fill(r *request) {
	n := int(min(f.left, int64(f.cfg.Batch)))
	of := f.posters[f.next%int64(len(f.posters))]
	r.authorization = of.authorization
	r.plain, r.totals = AppendBatch(r.plain[:0], of.records, n)
	r.body = r.plain
	if f.cfg.Batch == 1 {
		r.body = r.plain[1 : len(r.plain)-1]
	}
	// Named after everything that decides the body: the same key never stands
	// for two bodies, and the same run repeated is recognised as a repeat.
	r.key = fmt.Sprintf("load-%x-%x-%d-%d", f.cfg.Seed, f.cfg.Start.UnixNano(), f.cfg.Batch, f.next)
	if f.left -= int64(n); r.totals.Records < int64(n) {
		f.left = 0
	}
	f.next++
}

// missed is how many records were due before the end but not taken.
func (f *feed) missed() int64 {
	if f.every == 0 || f.cfg.Duration == 0 {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	due := int64((f.cfg.Duration + f.every - 1) / f.every)
	return min(max(0, due-f.next)*int64(f.cfg.Batch), f.cfg.Records)
}

// zipper compresses bodies, or leaves them as they are when it is nil.
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
