package load

import (
	"math/bits"
	"time"
)

// histogram counts durations in buckets that are as fine as 1/128 of their
// value, from nanoseconds to centuries.
type histogram struct {
	buckets [58 * halfBuckets]uint64
	count   uint64
	sum     time.Duration
	max     time.Duration
}

// halfBuckets is how many buckets there are from one power of two to the next.
const halfBuckets = 128

func (h *histogram) record(d time.Duration) {
	d = max(0, d)
	h.buckets[bucketOf(uint64(d))]++
	h.count++
	h.sum += d
	h.max = max(h.max, d)
}

// quantile gives the duration that a share q of all is not above, rounded up to
// the end of its bucket.
func (h *histogram) quantile(q float64) time.Duration {
	if h.count == 0 {
		return 0
	}
	rank := max(1, uint64(q*float64(h.count)+0.9999999))
	for i, n := range h.buckets {
		if n >= rank {
			return min(h.max, time.Duration(bucketEnd(i)))
		}
		rank -= n
	}
	return h.max
}

func (h *histogram) mean() time.Duration {
	if h.count == 0 {
		return 0
	}
	return h.sum / time.Duration(h.count)
}

// bucketOf: values below 2*halfBuckets have their own bucket; above, each power
// of two is cut in halfBuckets.
func bucketOf(v uint64) int {
	shift := max(0, bits.Len64(v)-bits.Len64(halfBuckets))
	return shift*halfBuckets + int(v>>shift)
}

func bucketEnd(i int) uint64 {
	shift := max(0, i/halfBuckets-1)
	return uint64(i-shift*halfBuckets+1)<<shift - 1
}
