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

// Content encodings of bodies.
const (
	encodingGzip = "gzip"
	encodingZstd = "zstd"
)

// encodingOf returns the compression of a body; empty: none.
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
		return "", refuse(codeUnsupportedEncoding, "send bodies uncompressed, or with gzip or zstd")
	}
}

// freeOfRatio is the decompressed size without a limit of the ratio.
const freeOfRatio = 1 << 20

// inflate decompresses a body that is completely read, so that decoders are held only while
// they work, not while waiting for a client or for memory. A body longer than it claims is
// decompressed again, with memory for the maximum.
func (b *bodies) inflate(ctx context.Context, subject, encoding string, sent *body, limit int) (*body, error) {
	if len(sent.bytes) == 0 {
		return nil, refuse(codeEmptyBody, "the body is empty")
	}
	allowed := max(freeOfRatio, b.cfg.Ratio*len(sent.bytes))
	bound := min(limit, allowed)
	expect := min(8*len(sent.bytes), bound)
	// An implausible size means a truncated or uncompressed body, which decompression detects.
	if claim, said := claimedSize(encoding, sent.bytes); said && claim <= uint64(limit) {
		if expect = int(claim); expect > allowed {
			return nil, tooDense(b.cfg.Ratio)
		}
	}
	for _, n := range []int{expect, bound} {
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
	if bound < limit {
		return nil, tooDense(b.cfg.Ratio)
	}
	return nil, tooLarge(limit)
}

// unpack decompresses at most n bytes into plain, and reports whether that is all.
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

// claimedSize is the size that a compressed body claims. A false claim only costs a second
// decompression or is refused.
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

// decoder decompresses one body at a time. Its decoders are created on first use and reused.
type decoder struct {
	source bytes.Reader
	gzip   *gzip.Reader
	zstd   *zstd.Decoder
}

// zstdWindow is the largest accepted window: what every decoder should support (RFC 8878,
// 3.1.1.1.2).
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
	return refuse(codeBadCompression, "the body cannot be decompressed by its Content-Encoding")
}

func tooDense(ratio int) *refusal {
	return refuse(codeRatio, fmt.Sprintf("the body decompresses to more than %d times its size", ratio))
}
