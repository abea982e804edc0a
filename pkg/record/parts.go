package record

import "github.com/klauspost/compress/s2"

const (
	// DefaultPartBytes is the size parts are made for.
	DefaultPartBytes = 512 << 10

	// MaxPartBytes is the largest part the stream takes: its limit of 2 MiB
	// for a message, less room for the headers.
	MaxPartBytes = 2<<20 - 64<<10

	// maxPlainBytes is the size of a part before compression. It bounds the
	// memory of whoever makes and reads it: records often become a tenth. A
	// record larger than that is a part alone.
	maxPlainBytes = 1 << 20
)

// Parts appends to dst the messages that carry the records, in order: JSON
// arrays split between records, compressed with S2 when that pays. A body is at
// most target bytes, unless it holds a single record. The same request always
// yields the same parts. They are r's, and good until it is used again or
// released. The error is a *LimitError: a record that would not fit even alone.
func (r *Request) Parts(target int, dst []Part) ([]Part, error) {
	r.used = 0
	guess := maxPlainBytes // bytes of records that should make one part
	for from := 0; from < len(r.records); {
		to := r.upTo(from, guess)
		part := r.part(from, to)
		for len(part.Body) > target && to > from+1 {
			r.used--
			guess = r.shrink(from, to, len(part.Body), target)
			to = min(to-1, r.upTo(from, guess))
			part = r.part(from, to)
		}
		if len(part.Body) > MaxPartBytes {
			return dst, &LimitError{Code: CodeRecordTooLarge, Index: from, Limit: MaxPartBytes, Detail: details[CodeRecordTooLarge] + ", even compressed"}
		}
		dst = append(dst, part)
		from = to
	}
	return dst, nil
}

// upTo returns the end of the records from `from` on that fit in n bytes; at
// least one.
func (r *Request) upTo(from, n int) int {
	to := from + 1
	n -= r.size(from) + len("[]")
	for ; to < len(r.records); to++ {
		if n -= r.size(to) + len(","); n < 0 {
			break
		}
	}
	return to
}

func (r *Request) size(i int) int { return int(r.records[i].end - r.records[i].start) }

// shrink returns how many bytes of records to try next, after those from
// `from` to `to` became encoded bytes: a little less than would fit at the
// same ratio.
func (r *Request) shrink(from, to, encoded, target int) int {
	plain := 0
	for i := from; i < to; i++ {
		plain += r.size(i) + len(",")
	}
	return int(int64(plain) * int64(target) / int64(encoded) * 15 / 16)
}

// part encodes the records from `from` to `to`.
func (r *Request) part(from, to int) Part {
	plain := r.join(from, to)
	if room := s2.MaxEncodedLen(len(plain)); cap(r.encoded) < room {
		r.encoded = make([]byte, room)
	}
	body, encoding := s2.Encode(r.encoded[:cap(r.encoded)], plain), EncodingS2
	if len(body) > len(plain)-len(plain)/8 {
		body, encoding = plain, ""
	}
	if r.used == len(r.bodies) {
		r.bodies = append(r.bodies, nil)
	}
	r.bodies[r.used] = append(r.bodies[r.used][:0], body...)
	r.used++
	return Part{Body: r.bodies[r.used-1], Encoding: encoding, Records: to - from}
}

// join returns the array of the records from `from` to `to`: the body itself
// when it is just that.
func (r *Request) join(from, to int) []byte {
	if r.array && to-from == len(r.records) && len(r.body) <= maxPlainBytes {
		return r.body
	}
	b := append(r.joined[:0], '[')
	for i := from; i < to; i++ {
		if i > from {
			b = append(b, ',')
		}
		b = append(b, r.Record(i)...)
	}
	r.joined = append(b, ']')
	return r.joined
}
