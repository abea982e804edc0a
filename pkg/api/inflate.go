package api

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"sluice/pkg/api/budget"
)

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

// freeOfRatio is how large a body may become whatever it was compressed from.
const freeOfRatio = 1 << 20

// inflate decompresses a body that is all in memory, so that decoders and their
// windows are held only while they work: never while a client dawdles, and never
// while memory is waited for. A body that is longer than it said is decompressed anew,
// with memory for all that it may become.
func (b *bodies) inflate(ctx context.Context, subject, encoding string, sent *body, limit int) (*body, error) {
	if len(sent.bytes) == 0 {
		return nil, refuse(codeEmptyBody, "the body is empty")
	}
	allowed := max(freeOfRatio, b.cfg.Ratio*len(sent.bytes))
	most := min(limit, allowed)
	expect := min(8*len(sent.bytes), most)
	// What cannot be true is what a body that was cut off or never was
	// compressed happens to say: unpacking it will tell.
	if claim, said := claimedSize(encoding, sent.bytes); said && claim <= uint64(limit) {
		if expect = int(claim); expect > allowed {
			return nil, tooDense(b.cfg.Ratio)
		}
	}
	for _, n := range []int{expect, most} {
		var hold *budget.Hold
		if len(sent.bytes) <= budget.SmallBody { // else the hold of sent has room for both
			var err error
			if hold, err = b.budget.Acquire(ctx, subject, int64(budget.Capacity(n)), nil); err != nil {
				return nil, err
			}
		}
		plain := b.newBody(n, hold)
		whole, err := b.unpack(ctx, encoding, sent.bytes, plain, n)
		if whole && hold == nil {
			plain.hold, sent.hold = sent.hold, nil
			plain.hold.Shrink(int64(cap(plain.bytes)))
		}
		if whole {
			return plain, nil
		}
		plain.release()
		if err != nil {
			return nil, inflateFailure(err)
		}
	}
	if most < limit {
		return nil, tooDense(b.cfg.Ratio)
	}
	return nil, tooLarge(limit)
}

// unpack decompresses at most n bytes into plain, and tells whether they are all.
func (b *bodies) unpack(ctx context.Context, encoding string, sent []byte, plain *body, n int) (whole bool, err error) {
	idle := b.short
	if n > budget.SmallBody {
		idle = b.long
	}
	var d *decoder
	select {
	case d = <-idle:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	defer func() {
		d.source.Reset(nil)
		idle <- d
	}()
	from, err := d.open(encoding, sent)
	if err != nil {
		return false, err
	}
	return plain.fill(from, n)
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

// decoder decompresses one body at a time. Its decoders are made when they
// are first needed, and used again.
type decoder struct {
	source bytes.Reader
	gzip   *gzip.Reader
	zstd   *zstd.Decoder
}

// zstdWindow is the largest window a body may ask for: what every decoder is
// expected to support (RFC 8878, 3.1.1.1.2).
const zstdWindow = 8 << 20

func (d *decoder) open(encoding string, sent []byte) (io.Reader, error) {
	d.source.Reset(sent)
	var err error
	switch {
	case encoding == encodingGzip && d.gzip == nil:
		d.gzip, err = gzip.NewReader(&d.source)
		return d.gzip, err
	case encoding == encodingGzip:
		return d.gzip, d.gzip.Reset(&d.source)
	case d.zstd == nil:
		// One goroutine fewer, and no buffer but the window.
		d.zstd, err = zstd.NewReader(&d.source, zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow))
		return d.zstd, err
	default:
		return d.zstd, d.zstd.Reset(&d.source)
	}
}

func inflateFailure(err error) error {
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		return refuse(codeBadCompression, fmt.Sprintf("the body needs a zstd window of more than %d bytes", zstdWindow))
	}
	return refuse(codeBadCompression, "the body cannot be decompressed as its Content-Encoding says")
}

func tooDense(ratio int) *refusal {
	return refuse(codeRatio, fmt.Sprintf("the body is more than %d times as large as what was sent", ratio))
}
