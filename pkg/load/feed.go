package load

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"

	"sluice/pkg/load/simulator"
)

// request is one body to be posted, and what to expect of it.
type request struct {
	body   []byte // as it goes over the wire
	plain  []byte // JSON; the memory of body when nothing is compressed
	zipped bytes.Buffer
	totals Totals
	ranges []Range

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

	mu       sync.Mutex
	posters  []poster // of each token; of bulks those of each connection one after the other
	left     int64
	next     int64      // number of the next request
	prepared []*request // all that are left, when they were made in advance
}

func newFeed(cfg Config) (*feed, error) {
	f := &feed{cfg: cfg, left: cfg.Records}
	partitions := 1
	if cfg.Bulk != nil {
		partitions = cfg.Connections
	}
	if cfg.Source != nil {
		partitions = 0
		f.posters = append(f.posters, poster{cfg.authorization(cfg.Token), cfg.Source})
	}
	for partition := range partitions {
		for i, token := range append([]string{cfg.Token}, cfg.Tokens...) {
			g := GeneratorConfig{Seed: cfg.Seed + uint64(i), Start: cfg.Start, Step: cfg.step(), After: cfg.After, Envelope: cfg.Envelope}
			if cfg.Bulk != nil {
				g.Only = partition + 1
			}
			f.posters = append(f.posters, poster{cfg.authorization(token), NewGenerator(g)})
		}
	}
	if cfg.Rate > 0 {
		f.every = time.Duration(float64(cfg.Batch) / cfg.Rate * float64(time.Second))
	}
	if !cfg.Prepare {
		return f, nil
	}
	zip := newZipper(cfg.Gzip)
	for f.left > 0 {
		r := new(request)
		f.fill(r, 0)
		if err := zip.compress(r); err != nil {
			return nil, err
		}
		if cfg.Gzip {
			r.plain = nil
		}
		f.prepared = append(f.prepared, r)
	}
	f.next = 0
	return f, nil
}

// take gives a connection its next request, made in the memory of r unless it was
// prepared; nil when the run is over. The caller owns it until it takes another one.
func (f *feed) take(r *request, connection int) *request {
	f.mu.Lock()
	defer f.mu.Unlock()
	due := f.began.Add(time.Duration(f.next) * f.every)
	if f.cfg.Duration > 0 {
		end := f.began.Add(f.cfg.Duration)
		if f.every > 0 && !due.Before(end) || !time.Now().Before(end) {
			return nil
		}
	}
	switch {
	case f.cfg.Prepare && f.next < int64(len(f.prepared)):
		r = f.prepared[f.next]
		f.next++
	case !f.cfg.Prepare && f.left > 0:
		f.fill(r, connection)
	default:
		return nil
	}
	r.due = time.Time{}
	if f.every > 0 {
		r.due = due
	}
	return r
}

// fill makes the next request. A batch of one is an object, not an array.
func (f *feed) fill(r *request, connection int) {
	n := int(min(f.left, int64(f.cfg.Batch)))
	tokens := int64(1 + len(f.cfg.Tokens))
	of := f.posters[f.next%tokens]
	if f.cfg.Bulk != nil {
		of = f.posters[int64(connection)*tokens+f.next%tokens]
	}
	r.authorization = of.authorization
	switch {
	case f.cfg.Bulk != nil:
		r.plain, r.totals, r.ranges = appendRecords(r.plain[:0], of.records, n, func(dst []byte, r simulator.Record) []byte {
			return f.cfg.Bulk(dst, r.Partition, r.JSON)
		})
		r.body = r.plain
	default:
		r.plain, r.totals, r.ranges = AppendBatch(r.plain[:0], of.records, n)
		r.body = r.plain
		if f.cfg.Batch == 1 {
			r.body = r.plain[1 : len(r.plain)-1]
		}
	}
	// Named after everything that decides the body: the same key never stands
	// for two bodies, and the same run repeated is recognised as a repeat.
	r.key = fmt.Sprintf("load-%x-%x-%d-%d", f.cfg.Seed, f.cfg.Start.UnixNano(), f.cfg.Batch, f.next)
	f.left -= int64(n)
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
