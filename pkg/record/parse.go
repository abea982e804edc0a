package record

import (
	"bytes"
	"fmt"
	"math"

	"sluice/pkg/flow"
)

// parser is the state of Parse.
type parser struct {
	*Request
	w     *walker // of the columns
	lim   Limits
	shape shape
}

// shape is the position of records in a body, for pointers of problems.
type shape int

const (
	shapeList    shape = iota // an array, or concatenated objects
	shapeSole                 // the body is the record
	shapeWrapped              // in the member "records" of the body
)

func (p *parser) parse(form Form) error {
	w := p.w
	i := w.space(0)
	switch {
	case i == len(w.b) && form == FormNDJSON && bytes.IndexByte(w.b, '\n') >= 0:
		return nil // empty lines: a list without records
	case i == len(w.b):
		w.fail(CodeEmptyBody, i)
		return p.refusal()
	case form == FormAuto && w.b[i] == '[':
		if i = p.elements(i); i >= 0 {
			if i = w.space(i); i < len(w.b) {
				i = w.fail(CodeInvalidJSON, i)
			}
		}
	default:
		i = p.documents(i, form)
	}
	if i < 0 {
		return p.refusal()
	}
	if p.total > 0 {
		return &ProblemsError{Problems: p.export(), Total: p.total}
	}
	return nil
}

// documents reads concatenated objects up to the end of the body.
func (p *parser) documents(i int, form Form) int {
	w := p.w
	for n := 1; ; n++ {
		at, wrapped := i, false
		if i, wrapped = p.document(at); i < 0 {
			return -1
		}
		end := i
		i = w.space(end)
		switch {
		case i < len(w.b) && i == end && w.b[at] != '{':
			return w.fail(CodeInvalidJSON, i) // adjacent numbers need a separator
		case i < len(w.b):
			continue
		case n > 1 || form == FormNDJSON:
			p.shape = shapeList
		case wrapped:
			p.shape = shapeWrapped
		default:
			p.shape = shapeSole
		}
		return i
	}
}

// document reads one record, or one object that wraps records.
func (p *parser) document(at int) (end int, wrapped bool) {
	w := p.w
	if w.b[at] != '{' {
		return p.element(at), false
	}
	// Depth counts from the record. Only the end shows whether this is one.
	end, deep := w.record(at, p.lim.Depth), -1
	if end < 0 && w.code == CodeTooDeep {
		deep = w.pos
		end = w.record(at, p.lim.Depth+2)
	}
	switch {
	case end < 0:
		return -1, false
	case w.wraps():
		if p.elements(int(w.values[fieldRecords].start)) < 0 {
			return -1, false
		}
		return end, true
	case deep >= 0:
		return w.fail(CodeTooDeep, deep), false
	case len(p.records) == p.lim.Records:
		return w.fail(CodeTooManyRecords, at), false
	}
	return p.add(at, end), false
}

// wraps reports whether the object just read wraps a list of records.
func (w *walker) wraps() bool {
	return w.get(fieldRecords).kind == kindArray && w.seen&(1<<fieldValue|1<<fieldValueType) == 0
}

// elements reads the records of the array at i.
func (p *parser) elements(i int) int {
	i++
	for first := true; ; first = false {
		at, more := p.w.next(i, first, ']')
		if !more {
			return at
		}
		if i = p.element(at); i < 0 {
			return -1
		}
	}
}

// element reads one value, which should be a record.
func (p *parser) element(at int) (end int) {
	w := p.w
	switch {
	case len(p.records) == p.lim.Records:
		return w.fail(CodeTooManyRecords, at)
	case at < len(w.b) && w.b[at] == '{':
		end = w.record(at, p.lim.Depth)
		return p.add(at, end)
	}
	end, _ = w.skip(at, p.lim.Depth)
	p.problem(fieldUnknown, CodeNotAnObject)
	return p.keep(at, end, posted{})
}

// add adds the record just read.
func (p *parser) add(at, end int) int {
	if end < 0 {
		return -1
	}
	w := p.w
	if p.lim.Shaped && w.seen&known == 0 {
		p.problem(fieldValueType, CodeMissing)
	}
	for f, code := w.wrong(0); code != ""; f, code = w.wrong(f + 1) {
		p.problem(f, code)
	}
	if p.lim.Tenants != nil {
		p.checkTenant()
	}
	if rule := p.rule(); rule > 0 {
		return p.keep(at, end, posted{rule: rule})
	}
	if id := w.get(fieldID); id.kind <= kindNull || id.kind == kindString && id.end-id.start == 2 {
		p.noID++
		if !w.positioned() {
			p.byPlace++
		}
	}
	if ms, code := w.time(w.get(fieldTimestamp)); code != "" || !plausible(ms) {
		p.badTime++
	} else if !p.inMonths(ms) {
		p.problem(fieldTimestamp, CodeTooManyMonths)
	}
	p.unknown += len(w.outer) + len(w.inner)
	route := w.route()
	if p.again = p.again || p.total > 0 || len(w.masked) > 0 || p.isWide(); !p.again {
		p.row(at, end)
	}
	return p.keep(at, end, posted{route: route})
}

// row adds the row of the record just read.
func (r *Request) row(at, end int) {
	w := r.walker()
	r.columns.reader.start, r.columns.reader.end = at, end
	mask := w.mask
	w.mask = nil                     // a hash may read the record again
	r.columns.row(len(r.columns.TS)) // many requests have one record: later ones extend by more
	w.mask = mask
}

// isWide reports whether the rows would take far more memory than the body.
func (p *parser) isWide() bool { return len(p.columns.TS)*512 > 4*len(p.body)+1<<20 }

// use selects the mask. Masked names must not be cached.
func (p *parser) use(mask *Mask) {
	if p.w.mask != mask {
		p.w.mask, p.w.names, p.w.valueNames = mask, names{}, names{}
	}
}

// known are the members that make an object a record. Other JSON, such as requests to or
// answers of search servers, has none. A timestamp or a list of records is not enough.
const known = (uint64(1)<<firstOfValue - 1) &^ (1<<fieldTimestamp | 1<<fieldRecords)

// keep adds a record.
func (p *parser) keep(at, end int, one posted) int {
	if end >= 0 && end-at > p.lim.RecordBytes {
		return p.w.fail(CodeRecordTooLarge, at)
	}
	if end >= 0 {
		one.span, one.index = span{uint32(at), uint32(end)}, uint32(len(p.records))
		p.records = append(p.records, one)
	}
	return end
}

// Span is a range of bytes of a body, End exclusive.
type Span struct{ Start, End int }

// Refused is a span that is not an acceptable record.
type Refused struct {
	Index   int    // of the span
	Problem        // Index is -1: the pointer is relative to the span
	Raw     []byte // as posted, with secrets masked as far as it is JSON; owned by the receiver
}

// ParseEach checks one record per span of a posted body and keeps the acceptable ones. It returns the others, for
// clients that would otherwise resend all of them indefinitely. It is Parse in all else: the error is a *LimitError if
// the body is too large.
func (r *Request) ParseEach(body []byte, spans []Span, lim Limits) ([]Refused, error) {
	r.reset(body)
	if len(body) > math.MaxInt32 {
		return nil, &LimitError{Code: CodeBodyTooLarge, Limit: math.MaxInt32, Detail: details[CodeBodyTooLarge]}
	}
	p := parser{Request: r, w: r.walker(), lim: lim.withDefaults(), shape: shapeSole}
	p.lim.Records = math.MaxInt
	p.use(p.lim.Mask)
	var refused []Refused
	for i, span := range spans {
		if problem, ok := p.each(span); !ok {
			refused = append(refused, Refused{Index: i, Problem: problem})
		}
	}
	p.w.b = body
	for i := range refused { // before hide shifts them
		span := spans[refused[i].Index]
		refused[i].Raw = masked(body[span.Start:span.End], p.lim)
	}
	if len(p.w.masked) > 0 {
		r.hide()
	}
	r.leaveOut(len(lim.Exclude))
	r.columns.fill(new(flow.Message))
	return refused, nil
}

// each checks the record of a span. A refused one leaves the state unchanged.
func (p *parser) each(span Span) (Problem, bool) {
	r, w := p.Request, p.w
	n, noID, byPlace, badTime, unknown, hidden := len(r.records), r.noID, r.byPlace, r.badTime, r.unknown, len(w.masked)
	months := len(r.months)
	w.b = r.body[:span.End]
	at := w.space(span.Start)
	end := -1
	if at == span.End {
		w.fail(CodeEmptyBody, at)
	} else if end = p.element(at); end >= 0 && w.space(end) < span.End {
		end = w.fail(CodeInvalidJSON, end)
	}
	if end >= 0 && len(w.masked) > hidden {
		w.masked = append(w.masked[:hidden], arranged(w.masked[hidden:])...)
		if end-at+growth(w.masked[hidden:]) > p.lim.RecordBytes {
			end = w.fail(CodeRecordTooLarge, at)
		}
	}
	var found Problem
	switch {
	case end < 0:
		found = Problem{Index: -1, Pointer: "#", Code: w.code, Detail: details[w.code]}
		if w.code == CodeInvalidJSON || w.code == CodeInvalidUTF8 {
			found.Detail = fmt.Sprintf("%s, at byte %d", found.Detail, w.pos-span.Start)
		}
	case p.total > 0:
		found = p.export()[0]
		found.Index = -1
	default:
		return found, true
	}
	r.again = true
	r.records, r.noID, r.byPlace, r.badTime, r.unknown = r.records[:n], noID, byPlace, badTime, unknown
	w.masked = w.masked[:hidden]
	r.months, r.from, r.to = r.months[:months], 0, 0
	r.problems, r.total = r.problems[:0], 0
	return found, false
}

// masked is a copy of text that is not a record, without the secrets that can be read as
// JSON. An unterminated secret is cut off.
func masked(raw []byte, lim Limits) []byte {
	alone := Request{body: bytes.Clone(raw), workspace: new(workspace)}
	w := alone.walker()
	w.b, w.mask = alone.body, lim.Mask
	for i := w.space(0); i >= 0 && i < len(raw); {
		if raw[i] == '{' {
			i = w.record(i, len(raw))
		} else {
			i, _ = w.skip(i, len(raw))
		}
		if i >= 0 {
			i = w.space(i)
		}
	}
	if len(w.masked) > 0 {
		alone.hide()
	}
	return alone.body
}
