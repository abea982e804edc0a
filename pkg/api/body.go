package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"sluice/pkg/accept"
	"sluice/pkg/api/budget"
)

// bodies reads request bodies: with deadlines, within the memory budget, decompressed.
type bodies struct {
	cfg     Config
	metrics *metrics
	budget  *budget.Budget
	buffers budget.Buffers

	// A decoder's holder may use a processor. Long work takes one of long, one fewer than
	// there are processors: one stays free for short work.
	long, short chan *decoder
}

func newBodies(cfg Config, m *metrics) *bodies {
	n := runtime.GOMAXPROCS(0)
	return &bodies{
		cfg: cfg, metrics: m, budget: budget.New(cfg.InFlightBytes, cfg.InFlightWait),
		long: newDecoders(max(1, n-1)), short: newDecoders(max(2, n)),
	}
}

func newDecoders(n int) chan *decoder {
	idle := make(chan *decoder, n)
	for range n {
		idle <- &decoder{}
	}
	return idle
}

// processorFor waits for a processor if work on a body of n bytes is long.
func (b *bodies) processorFor(ctx context.Context, n int) (leave func(), err error) {
	if n <= budget.SmallBody {
		return func() {}, nil
	}
	return b.processor(ctx)
}

// processor waits for a processor for long work, some ten milliseconds: a large body or a
// password hash.
func (b *bodies) processor(ctx context.Context) (leave func(), err error) {
	select {
	case d := <-b.long:
		return func() { b.long <- d }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// body is the body of one request, which owns it until release.
type body struct {
	bytes  []byte
	buffer *[]byte // of bytes
	over   [1]byte // the byte read after bytes was full
	all    *bodies
	hold   *budget.Hold // nil: covered by the hold of another body
}

// newBody makes a body with capacity for n bytes.
func (b *bodies) newBody(n int, hold *budget.Hold) *body {
	buffer := b.buffers.Get(n)
	return &body{bytes: *buffer, buffer: buffer, all: b, hold: hold}
}

// release returns the memory; the bytes must not be used afterwards
func (b *body) release() {
	if b == nil {
		return
	}
	b.all.buffers.Put(b.buffer)
	b.bytes, b.buffer = nil, nil
	if b.hold != nil {
		b.hold.Release()
	}
}

// fill reads until the body has n bytes or ends; whole reports that it ended. If not, over is
// the next byte.
func (b *body) fill(from io.Reader, n int) (whole bool, err error) {
	for err == nil {
		var read int
		if len(b.bytes) < n {
			read, err = from.Read(b.bytes[len(b.bytes):n])
			b.bytes = b.bytes[:len(b.bytes)+read]
		} else if read, err = from.Read(b.over[:]); read > 0 {
			return false, nil
		}
	}
	if err == io.EOF {
		return true, nil
	}
	return false, err
}

// read reads the body of a request, which counts against limit after
// decompression. The caller releases it, unless there is an error.
func (b *bodies) read(c *call, limit int) (*body, error) {
	encoding, err := encodingOf(c.r.Header)
	if err != nil {
		return nil, err
	}
	if c.r.ContentLength > int64(limit) {
		return nil, tooLarge(limit)
	}
	pace := budget.NewPace(c.w, c.r, accept.Connection(c.r.Context()), budget.Patience{Timeout: b.cfg.BodyTimeout, Grace: b.cfg.BodyGrace, Rate: b.cfg.BodyRate})
	sent, err := b.receive(c, pace, encoding != "", limit)
	cut, failed := pace.Done()
	if err = errors.Join(err, failed); err != nil || cut {
		sent.release()
		return nil, readFailure(err, limit, cut)
	}
	b.metrics.wireBytes.Add(float64(len(sent.bytes)))
	if encoding != "" {
		plain, err := b.inflate(c.r.Context(), c.who.Subject, encoding, sent, limit)
		sent.release()
		if err != nil {
			return nil, err
		}
		sent = plain
	}
	b.metrics.bodyBytes.Add(float64(len(sent.bytes)))
	return sent, nil
}

// beginning is how much of a large body, or one of unknown length, is read into a small
// buffer before it counts as arriving.
const beginning = 64 << 10

// room is the next capacity of a body of which have bytes are read. A small body of known
// length gets all at once.
func room(have, length, limit int) int {
	switch {
	case length > have && (have > 0 || length <= budget.SmallBody):
		return length
	case have == 0:
		return min(beginning, limit)
	case have < budget.SmallBody:
		return min(4*have, limit)
	default:
		return limit
	}
}

var errTooLarge = errors.New("more bytes than allowed")

// receive reads the body as sent. Memory is acquired before reading, and again if the body
// needs more. That of a large packed body also covers its decompression: otherwise such
// bodies could wait for each other.
func (b *bodies) receive(c *call, pace *budget.Pace, packed bool, limit int) (sent *body, err error) {
	for n := 0; n < limit; {
		n = room(n, int(c.r.ContentLength), limit)
		size := budget.Capacity(n)
		if packed && n > budget.SmallBody {
			size += budget.Capacity(limit)
		}
		hold, err := b.budget.Acquire(c.r.Context(), c.who.Subject, int64(size), pace)
		if err != nil {
			return sent, err
		}
		wider := b.newBody(n, hold)
		if sent != nil {
			wider.bytes = append(append(wider.bytes, sent.bytes...), sent.over[0])
			sent.release()
		}
		sent = wider
		whole, err := sent.fill(pace, n)
		sent.hold.Unwatch()
		if whole || err != nil {
			return sent, err
		}
	}
	return sent, errTooLarge
}

// readFailure is the refusal for a failed read.
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
