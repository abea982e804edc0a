package api

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"sluice/pkg/api/budget"
)

// inflate decompresses a body that is all in memory, so that the decoders and
// their windows are held only while they work: never while a client dawdles,
// and never while memory is waited for.
func (b *bodies) inflate(ctx context.Context, subject, encoding string, packed *body, limit int) (*body, error) {
	sent := packed.bytes
	if len(sent) == 0 {
		return nil, refuse(codeEmptyBody, "the body is empty")
	}
	allowed := max(freeOfRatio, b.cfg.Ratio*len(sent))
	most := min(limit, allowed)
	expect := min(8*len(sent), most)
	// What cannot be true is what a body that was cut off or never was
	// compressed happens to say: unpacking it will tell.
	if claim, said := claimedSize(encoding, sent); said && claim <= uint64(limit) {
		if expect = int(claim); expect > allowed {
			return nil, tooDense(b.cfg.Ratio)
		}
	}
	h, err := b.budget.Unpack(ctx, subject, int64(budget.Capacity(expect)), packed.hold)
	if err != nil {
		return nil, err
	}
	plain := &body{bytes: b.buffers.Get(expect), end: expect, most: most, hold: h, buffers: b.buffers}
	err = b.unpack(ctx, encoding, sent, plain, allowed)
	if errors.Is(err, errNoRoom) {
		// It is longer than it said. It waits for all it may need without a
		// decoder in hand, and then begins anew.
		if err = h.Grow(ctx, int64(budget.Capacity(most))); err == nil {
			plain.bytes = plain.bytes[:0]
			plain.widen(most)
			err = b.unpack(ctx, encoding, sent, plain, allowed)
		}
	}
	if err != nil {
		plain.release()
		return nil, inflateFailure(err, limit, b.cfg.Ratio)
	}
	return plain, nil
}

// errNoRoom says that there is no more memory without waiting for it.
var errNoRoom = errors.New("no room for more at once")

// unpack decompresses a body into plain. Bodies that become large have decoders
// of their own: small ones need not stand behind them.
func (b *bodies) unpack(ctx context.Context, encoding string, sent []byte, plain *body, allowed int) error {
	leave, err := b.processorFor(ctx, cap(plain.bytes))
	if err != nil {
		return err
	}
	defer leave()
	idle, longest := b.quick, budget.SmallBody
	if cap(plain.bytes) > budget.SmallBody {
		idle, longest = b.bulk, plain.most
	}
	worker := <-idle // soon: none waits for anything but a processor
	defer func() {
		worker.source.Reset(nil)
		idle <- worker
	}()
	from, err := worker.open(encoding, sent)
	if err != nil {
		return err
	}
	return plain.fill(&ratioReader{from: from, left: allowed}, func() error {
		n := plain.next()
		if n > longest || !plain.hold.TryGrow(int64(budget.Capacity(n))) {
			return errNoRoom
		}
		plain.widen(n)
		return nil
	})
}

// claimedSize is how large a compressed body says it is. One that lies gets the
// memory it turns out to need, or is refused then.
func claimedSize(encoding string, sent []byte) (size uint64, said bool) {
	var head zstd.Header
	switch {
	case encoding == encodingGzip && len(sent) >= 18 && sent[0] == 0x1f && sent[1] == 0x8b:
		// The last four bytes are the length of the last member (RFC 1952).
		return uint64(binary.LittleEndian.Uint32(sent[len(sent)-4:])), true
	case encoding == encodingZstd && head.Decode(sent) == nil && head.HasFCS:
		return head.FrameContentSize, true
	}
	return 0, false
}

func newInflaters(n int) chan *inflater {
	idle := make(chan *inflater, n)
	for range n {
		idle <- &inflater{}
	}
	return idle
}

// inflater decompresses one body at a time. Its decoders are made when they
// are first needed, and used again.
type inflater struct {
	source bytes.Reader
	gzip   *gzip.Reader
	zstd   *zstd.Decoder
}

// zstdWindow is the largest window a body may ask for: what every decoder is
// expected to support (RFC 8878, 3.1.1.1.2).
const zstdWindow = 8 << 20

func (i *inflater) open(encoding string, sent []byte) (io.Reader, error) {
	i.source.Reset(sent)
	var err error
	switch {
	case encoding == encodingGzip && i.gzip == nil:
		i.gzip, err = gzip.NewReader(&i.source)
		return i.gzip, err
	case encoding == encodingGzip:
		return i.gzip, i.gzip.Reset(&i.source)
	case i.zstd == nil:
		// One goroutine fewer, and no buffer but the window.
		i.zstd, err = zstd.NewReader(&i.source, zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow))
		return i.zstd, err
	default:
		return i.zstd, i.zstd.Reset(&i.source)
	}
}

// freeOfRatio is how large a body may become whatever it was compressed from.
const freeOfRatio = 1 << 20

var errRatio = errors.New("more bytes than the compressed ones may stand for")

// ratioReader stops bombs before the limit of the body does.
type ratioReader struct {
	from io.Reader
	left int
}

func (r *ratioReader) Read(b []byte) (int, error) {
	n, err := r.from.Read(b)
	if r.left -= n; r.left < 0 {
		return 0, errRatio
	}
	return n, err
}

func inflateFailure(err error, limit, ratio int) error {
	switch {
	case errors.Is(err, errTooLarge):
		return tooLarge(limit)
	case errors.Is(err, errRatio):
		return tooDense(ratio)
	case errors.Is(err, budget.ErrNoMemory):
		return err
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		return refuse(codeBadCompression, fmt.Sprintf("the body needs a zstd window of more than %d bytes", zstdWindow))
	default:
		return refuse(codeBadCompression, "the body cannot be decompressed as its Content-Encoding says")
	}
}

func tooDense(ratio int) *refusal {
	return refuse(codeRatio, fmt.Sprintf("the body is more than %d times as large as what was sent", ratio))
}
