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

// bodies reads request bodies: in time, within the budget, decompressed.
type bodies struct {
	cfg     Config
	metrics *metrics
	budget  *budget.Budget
	buffers budget.Buffers

	// Who takes a decoder may work on a processor. Long work takes those of long, one
	// less than there are processors: one is left to all others, whose work is short.
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

// processorFor waits for a processor to work on a body of n bytes, if that is
// long work.
func (b *bodies) processorFor(ctx context.Context, n int) (leave func(), err error) {
	if n <= budget.SmallBody {
		return func() {}, nil
	}
	return b.processor(ctx)
}

// processor waits for a processor for long work, of some ten milliseconds: a large
// body, or a password.
func (b *bodies) processor(ctx context.Context) (leave func(), err error) {
	select {
	case d := <-b.long:
		return func() { b.long <- d }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// body is what a request carried. It belongs to one request, until release.
type body struct {
	bytes  []byte
	buffer *[]byte // of bytes
	over   [1]byte // what came when bytes was full
	all    *bodies
	hold   *budget.Hold // nil when the hold of another body covers it
}

// newBody makes a body with room for n bytes.
func (b *bodies) newBody(n int, hold *budget.Hold) *body {
	buffer := b.buffers.Get(n)
	return &body{bytes: *buffer, buffer: buffer, all: b, hold: hold}
}

// release gives the memory back. The bytes must not be used any more.
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

// fill reads until the body has n bytes, and tells whether it ends there or before.
// If not, over is its next byte.
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

// beginning is how much of a body of unknown length, or of a large one, is read into
// the memory for small bodies, until it is seen to arrive.
const beginning = 64 << 10

// room is for how many bytes a body gets memory when have of them are read, and more
// are to come. A small body of known length gets all that it needs at once.
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

// receive reads the body as it was sent. Memory is acquired before anything is read,
// and again when the body needs more. For a large one that is packed it is enough to
// unpack it, too: several that are read would wait for each other otherwise.
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
