package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"

	"sluice/pkg/api/budget"
)

// bodies reads request bodies: in time, within the budget, decompressed.
type bodies struct {
	cfg         Config
	metrics     *metrics
	budget      *budget.Budget
	buffers     *budget.Buffers
	quick, bulk chan *inflater // the idle ones: for bodies that stay small, and for all others
	processors  chan struct{}  // taken by long work: one less than there are
}

func newBodies(cfg Config, m *metrics) *bodies {
	b := &bodies{
		cfg:     cfg,
		metrics: m,
		budget:  budget.New(cfg.InFlightBytes, int64(budget.Capacity(cfg.longestBody())), cfg.InFlightWait),
		buffers: &budget.Buffers{},
	}
	// Decompressing is work for a processor: more at once would not be faster.
	n := runtime.GOMAXPROCS(0)
	large := max(1, n-1)
	b.quick, b.bulk = newInflaters(max(2, n)), newInflaters(large)
	b.processors = make(chan struct{}, large)
	return b
}

// processorFor waits for a processor to work on a body of n bytes, if that is
// long work.
func (b *bodies) processorFor(ctx context.Context, n int) (leave func(), err error) {
	if n <= budget.SmallBody {
		return func() {}, nil
	}
	return b.processor(ctx)
}

// processor waits for a processor for work of some ten milliseconds: a large
// body, or a password. One is left to all others, whose work is short.
func (b *bodies) processor(ctx context.Context) (leave func(), err error) {
	select {
	case b.processors <- struct{}{}:
		return func() { <-b.processors }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// body is what a request carried. It belongs to one request, from read to
// release.
type body struct {
	bytes   []byte
	end     int // so many bytes are expected at most
	most    int // more bytes are too many
	hold    *budget.Hold
	buffers *budget.Buffers
	over    [1]byte // where a byte goes for which there is no room yet
	late    bool    // it was cut off, and had come whole at the same moment
}

// release gives the memory back. The bytes must not be used any more.
func (b *body) release() {
	b.buffers.Put(b.bytes)
	b.bytes = nil
	b.hold.Release()
}

// firstRead is what is asked for before anything is read.
const firstRead = 16 << 10

// nextRead is what is asked for when so much of a body has come: four times as
// much, as long as it may be a small one, and then all it may need. Were that
// asked for bit by bit too, large bodies that have some would wait for each
// other to have more.
func nextRead(have, end int, told bool) int {
	stays := budget.SmallBody
	if told && end > budget.SmallBody {
		stays = budget.Beginning
	}
	if have < stays {
		return min(4*have, end)
	}
	return end
}

// next is the capacity to ask for when the body is full.
func (b *body) next() int {
	if len(b.bytes) >= b.end {
		return b.most // it was said to be shorter
	}
	return nextRead(cap(b.bytes), b.end, b.hold.Told())
}

// room makes place for more bytes, within the budget.
func (b *body) room(ctx context.Context) error {
	n := b.next()
	if err := b.hold.Grow(ctx, int64(budget.Capacity(n))); err != nil {
		return err
	}
	b.widen(n)
	return nil
}

// widen moves the body to where there is room for n bytes.
func (b *body) widen(n int) {
	larger := append(b.buffers.Get(n), b.bytes...)
	b.buffers.Put(b.bytes)
	b.bytes = larger
}

// read reads the body of a request, which counts against limit after
// decompression. The caller releases it, unless there is an error.
func (b *bodies) read(c *call, limit int) (*body, error) {
	w, r, subject := c.w, c.r, c.who.Subject
	encoding, err := encodingOf(r.Header)
	if err != nil {
		return nil, err
	}
	if r.ContentLength > int64(limit) {
		return nil, tooLarge(limit)
	}
	sent, err := b.receive(w, r, subject, encoding != "", limit)
	if err != nil {
		return nil, err
	}
	if sent.late { // it is whole all the same, and the last one of its connection
		c.r = r.WithContext(context.WithoutCancel(r.Context()))
		w.Header().Set("Connection", "close")
	}
	b.metrics.wireBytes.Add(float64(len(sent.bytes)))
	if encoding == "" {
		b.metrics.bodyBytes.Add(float64(len(sent.bytes)))
		return sent, nil
	}
	defer sent.release()
	plain, err := b.inflate(c.r.Context(), subject, encoding, sent, limit)
	if err != nil {
		return nil, err
	}
	b.metrics.bodyBytes.Add(float64(len(plain.bytes)))
	return plain, nil
}

// receive reads the body as it was sent. The budget is asked before anything
// is read, and again whenever the body grows.
func (b *bodies) receive(w http.ResponseWriter, r *http.Request, subject string, packed bool, limit int) (*body, error) {
	end := limit
	if r.ContentLength >= 0 {
		end = int(r.ContentLength)
	}
	first := min(firstRead, end)
	conn, _ := r.Context().Value(connectionKey{}).(net.Conn)
	pace := budget.NewPace(w, r, conn, budget.Patience{Timeout: b.cfg.BodyTimeout, Grace: b.cfg.BodyGrace, Rate: b.cfg.BodyRate})
	h, err := b.budget.Receive(r.Context(), budget.Body{Subject: subject, End: r.ContentLength, Packed: packed, Pace: pace}, int64(budget.Capacity(first)))
	if err != nil {
		return nil, err
	}
	sent := &body{bytes: b.buffers.Get(first), end: end, most: limit, hold: h, buffers: b.buffers}
	err = sent.fill(pace, func() error { return sent.room(r.Context()) })
	h.Arrived()
	if err == nil {
		sent.late, err = pace.Done()
	}
	if err != nil {
		sent.release()
		return nil, readFailure(err, limit, pace.IsCut())
	}
	return sent, nil
}

var errTooLarge = errors.New("more bytes than allowed")

// fill reads until the end, up to the most, and gives back what it did not
// need. room makes place for more bytes whenever what there is is full.
func (b *body) fill(from io.Reader, room func() error) error {
	for {
		if len(b.bytes) == cap(b.bytes) && len(b.bytes) < b.end {
			if err := room(); err != nil {
				return err
			}
		}
		more, err := b.readSome(from)
		if len(more) > 0 {
			if err := room(); err != nil {
				return err
			}
			b.bytes = append(b.bytes, more...)
		}
		if err == io.EOF {
			b.hold.Shrink(int64(cap(b.bytes)))
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readSome reads what there is room for. Where there is none it looks whether
// the body ends here, and returns what came instead.
func (b *body) readSome(from io.Reader) (more []byte, err error) {
	into := b.bytes[len(b.bytes):min(cap(b.bytes), b.most)]
	if len(into) > 0 {
		n, err := from.Read(into)
		b.bytes = b.bytes[:len(b.bytes)+n]
		return nil, err
	}
	n, err := from.Read(b.over[:])
	if n > 0 && len(b.bytes) == b.most {
		return nil, errTooLarge
	}
	return b.over[:n], err
}

// readFailure says what a failed read means to the client.
func readFailure(err error, limit int, cut bool) error {
	switch {
	case errors.Is(err, errTooLarge):
		return tooLarge(limit)
	case cut:
		return refuse(codeBodyTimeout, "the body came too slowly while others waited for its memory")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse(codeBodyTimeout, "the body came too slowly")
	case errors.Is(err, budget.ErrNoMemory):
		return err
	default:
		return refuse(codeBodyIncomplete, "the body ended before its length was reached, or its chunks are malformed")
	}
}

func tooLarge(limit int) *refusal {
	return refuse(codeBodyTooLarge, fmt.Sprintf("the body is larger than %d bytes after decompression", limit))
}

// Content encodings that are taken.
const (
	encodingGzip = "gzip"
	encodingZstd = "zstd"
)

// encodingOf returns how a body is compressed, empty for not at all.
func encodingOf(h http.Header) (string, error) {
	values := h["Content-Encoding"]
	if len(values) == 0 {
		return "", nil
	}
	switch name := strings.ToLower(strings.TrimSpace(strings.Join(values, ","))); name {
	case "", "identity":
		return "", nil
	case encodingGzip, "x-gzip":
		return encodingGzip, nil
	case encodingZstd:
		return encodingZstd, nil
	default:
		return "", refuse(codeUnsupportedEncoding, "bodies are taken plain, or compressed with gzip or zstd")
	}
}
