package record

import (
	"bytes"
	"fmt"
	"math"
	"time"
)

// Span is a range of bytes of a body, End excluded.
type Span struct{ Start, End int }

// Refused is what stands at a span and is no record that would be taken.
type Refused struct {
	Index   int    // of the span
	Problem        // Index is -1: the pointer is that of the span alone
	Raw     []byte // as it was posted, its secrets masked as far as it is JSON; owned by the receiver
}

// ParseEach checks the records that stand at the spans of a posted body, one at
// each, and keeps those that can be taken. The others are passed over and told
// of, for a client that would send all of them again for ever. Otherwise it is
// as Parse: the error is a *LimitError, when the body is too large.
func (r *Request) ParseEach(body []byte, spans []Span, lim Limits, now time.Time) ([]Refused, error) {
	r.reset(body)
	if len(body) > math.MaxInt32 {
		return nil, &LimitError{Code: CodeBodyTooLarge, Limit: math.MaxInt32, Detail: details[CodeBodyTooLarge]}
	}
	p := parser{Request: r, lim: lim.withDefaults(), received: now.UnixMilli(), shape: shapeSole}
	p.lim.Records = math.MaxInt
	if r.w.mask != p.lim.Mask { // names that are masked must not be remembered
		r.w.mask, r.w.names, r.w.valueNames = p.lim.Mask, names{}, names{}
	}
	var refused []Refused
	for i, span := range spans {
		if problem, ok := p.each(span); !ok {
			refused = append(refused, Refused{Index: i, Problem: problem})
		}
	}
	r.w.b = body
	for i := range refused { // before hide moves them
		span := spans[refused[i].Index]
		refused[i].Raw = masked(body[span.Start:span.End], p.lim)
	}
	if len(r.w.masked) > 0 {
		r.hide()
	}
	return refused, nil
}

// each checks the record of a span, and leaves no trace of one that is refused.
func (p *parser) each(span Span) (Problem, bool) {
	r, w := p.Request, &p.w
	n, noID, byPlace, badTime, unknown, hidden := len(r.records), r.noID, r.byPlace, r.badTime, r.unknown, len(w.masked)
	w.b = r.body[:span.End]
	at := w.space(span.Start)
	end := -1
	if at == span.End {
		w.fail(CodeEmptyBody, at)
	} else if end = p.element(at); end >= 0 && w.space(end) < span.End {
		end = w.fail(CodeInvalidJSON, end)
	}
	var told Problem
	switch {
	case end < 0:
		told = Problem{Index: -1, Pointer: "#", Code: w.code, Detail: details[w.code]}
		if w.code == CodeInvalidJSON || w.code == CodeInvalidUTF8 {
			told.Detail = fmt.Sprintf("%s, at byte %d", told.Detail, w.pos-span.Start)
		}
	case p.total > 0:
		told = p.told()[0]
		told.Index = -1
	default:
		return told, true
	}
	r.records, r.noID, r.byPlace, r.badTime, r.unknown = r.records[:n], noID, byPlace, badTime, unknown
	w.masked = w.masked[:hidden]
	r.problems, r.total = r.problems[:0], 0
	return told, false
}

// masked is a copy of what is no record, without its secrets as far as it can be
// read as JSON. A secret that does not end is cut off.
func masked(raw []byte, lim Limits) []byte {
	alone := Request{body: bytes.Clone(raw)}
	w := &alone.w
	w.b, w.mask = alone.body, lim.Mask
	for i := w.space(0); i >= 0 && i < len(raw); {
		if i, _ = w.skip(i, deepest); i >= 0 {
			i = w.space(i)
		}
	}
	if len(w.masked) == 0 {
		return alone.body
	}
	last := w.masked[len(w.masked)-1]
	if end, _ := w.skip(int(last), deepest+2); end < 0 {
		alone.body = append(alone.body[:last], `"***"`...)
		w.b = alone.body
	}
	alone.hide()
	return alone.body
}
