package api

import (
	"math/bits"
	"sync"
)

// buffers keeps byte slices for reuse, one pool for each power of two, so that
// a small body never pins the memory of a large one.
type buffers struct {
	pools   [buffersMax - buffersMin + 1]sync.Pool
	headers sync.Pool // of slices that are in use: what the pools hold is behind a pointer
}

const (
	buffersMin = 12 // smallest capacity, 4 KiB, as a power of two
	buffersMax = 30
)

// capacity is what get gives for n bytes.
func capacity(n int) int { return 1 << max(buffersMin, bits.Len(uint(max(n, 1)-1))) }

// get returns an empty slice with room for n bytes.
func (p *buffers) get(n int) []byte {
	size := capacity(n)
	class := bits.TrailingZeros(uint(size)) - buffersMin
	if b, ok := p.pools[class].Get().(*[]byte); ok {
		kept := (*b)[:0]
		*b = nil
		p.headers.Put(b)
		return kept
	}
	return make([]byte, 0, size)
}

// put takes a slice of get back. Nobody may use it any more.
func (p *buffers) put(b []byte) {
	if b == nil {
		return
	}
	header, ok := p.headers.Get().(*[]byte)
	if !ok {
		header = new([]byte)
	}
	*header = b
	p.pools[bits.TrailingZeros(uint(cap(b)))-buffersMin].Put(header)
}
