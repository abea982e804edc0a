package record

import (
	"bytes"
	"io"

	"github.com/klauspost/compress/s2"

	"sluice/pkg/flow"
)

// maxMessageBytes bounds a decompressed message, far above what the api makes.
const maxMessageBytes = 32 << 20

// reader steps through the records of a message.
type reader struct {
	walker
	plain []byte // decompressed body
	start int    // start of the current record
	end   int    // and its end
	index int    // of the current record in its entry
}

func (r *reader) open(m *flow.Message) *BadRecordError {
	r.b, r.index, r.end, r.hashes = m.Body, m.Index-1, -1, true
	if m.Encoding != "" {
		plain, ok := r.decompress(m.Body)
		if !ok || m.Encoding != flow.EncodingS2 {
			return bad(-1, CodeBadEncoding, m.Body)
		}
		r.b = plain
	}
	if i := r.space(0); i < len(r.b) && r.b[i] == '[' {
		r.end = i + 1
		return nil
	}
	return bad(-1, CodeNotAnArray, m.Body)
}

// decompress decodes an S2 block; plain is valid until the next call.
func (r *reader) decompress(body []byte) (plain []byte, ok bool) {
	n, err := s2.DecodedLen(body)
	if err != nil || n > maxMessageBytes {
		return nil, false
	}
	if cap(r.plain) < n {
		r.plain = make([]byte, n)
	}
	plain, err = s2.Decode(r.plain[:n], body)
	return plain, err == nil
}

// advance moves to the next record; false at the end of the message.
func (r *reader) advance(m *flow.Message) (bool, *BadRecordError) {
	r.index++
	at, more := r.next(r.end, r.index == m.Index, ']')
	if more {
		r.start = at
		return true, nil
	}
	switch {
	case at < 0 || r.space(at) < len(r.b):
		return false, bad(-1, CodeInvalidJSON, m.Body)
	case m.Records > 0 && r.index-m.Index != m.Records:
		// Later records of the entry would get wrong indexes.
		return false, bad(-1, CodeMiscounted, m.Body)
	}
	return false, nil
}

// pass skips the current record.
func (r *reader) pass(m *flow.Message) *BadRecordError {
	if r.end, _ = r.skip(r.start, deepest); r.end < 0 {
		return bad(-1, r.code, m.Body)
	}
	return nil
}

// read reads the current record and checks it.
func (r *reader) read(m *flow.Message) *BadRecordError {
	if r.start >= len(r.b) || r.b[r.start] != '{' {
		if broken := r.pass(m); broken != nil {
			return broken
		}
		return bad(r.index, CodeNotAnObject, r.b[r.start:r.end])
	}
	if r.end = r.record(r.start, deepest); r.end < 0 {
		return bad(-1, r.code, m.Body)
	}
	if f, code := r.wrong(0); code != "" {
		refused := bad(r.index, code, r.b[r.start:r.end])
		refused.Reason = specs[f].name + " " + refused.Reason
		return refused
	}
	return nil
}

// worst returns found, unless the message is corrupt further on: then no record of it can
// be stored.
func (r *reader) worst(m *flow.Message, found *BadRecordError) *BadRecordError {
	for found.Index >= 0 {
		more, broken := r.advance(m)
		if broken == nil && more {
			broken = r.pass(m)
		}
		if broken != nil {
			return broken
		}
		if !more {
			break
		}
	}
	return found
}

func bad(index int, code string, raw []byte) *BadRecordError {
	return &BadRecordError{Index: index, Code: code, Reason: details[code], Raw: bytes.Clone(raw)}
}

// Each calls f with every record of a message, member for member as posted, and its index
// in the entry, in order, until f fails. raw is valid until f returns. A corrupt message is
// a *BadRecordError.
func Each(m *flow.Message, f func(index int, raw []byte) error) error {
	if m.Encoding == flow.EncodingColumns {
		return eachRow(m, f)
	}
	var r reader
	if broken := r.open(m); broken != nil {
		return broken
	}
	for {
		more, broken := r.advance(m)
		if broken == nil && more {
			broken = r.pass(m)
		}
		switch {
		case broken != nil:
			return broken
		case !more:
			return nil
		}
		if err := f(r.index, r.b[r.start:r.end]); err != nil {
			return err
		}
	}
}

// Raw returns the record with this index in the entry, as posted; the caller owns the
// memory. The error is a *BadRecordError.
func Raw(m *flow.Message, index int) (raw []byte, err error) {
	err = Each(m, func(i int, record []byte) error {
		if i != index {
			return nil
		}
		raw = bytes.Clone(record)
		return io.EOF // found
	})
	switch {
	case raw != nil:
		return raw, nil
	case err == nil:
		return nil, bad(index, CodeNoSuchRecord, nil)
	}
	return nil, err
}

// Find returns the record of an entry with this index, as posted, and its message; the
// caller owns the memory. The error is a *BadRecordError.
func Find(e *flow.Entry, index int) (m flow.Message, raw []byte, err error) {
	for i := range e.Messages {
		m = e.Messages[i]
		if last := i == len(e.Messages)-1; last || index < e.Messages[i+1].Index {
			break
		}
	}
	raw, err = Raw(&m, index)
	return m, raw, err
}
