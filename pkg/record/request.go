package record

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"sluice/pkg/flow"
)

// Form is how the records of a body are written.
type Form int

const (
	// FormAuto is application/json: one record, an array of records, an object
	// with the array under "records" and without "value" and "valueType", or
	// several of those objects one after the other.
	FormAuto Form = iota

	// FormNDJSON is application/x-ndjson: one object after the other.
	FormNDJSON
)

// Request is a posted body, split into records and checked. It is made to be
// used again and again: take it with NewRequest, give it back with Release.
type Request struct {
	body     []byte
	records  []posted // in the order of the body
	sorted   []posted // the same by lane, for Cut
	lanes    uint64   // that Cut cuts for
	array    bool     // body is one JSON array
	noID     int      // records without an id
	byPlace  int      // records without an identity of their own
	badTime  int      // records with a timestamp missing or absurd
	unknown  int      // members that are no fields
	excluded []int    // records left out by each rule, nil when there are none
	months   []int    // of the timestamps, such as 202511; at most MaxMonths
	from     int64    // the month of the last timestamp begins, ms since 1970,
	to       int64    // and ends before this

	w        walker
	cuts     []cut     // the values that were masked
	problems []problem // the first ones
	total    int       // of problems, also of those not kept

	joined  []byte   // the array of records being put together
	encoded []byte   // the same compressed, in a buffer for the worst case
	bodies  [][]byte // of chunks; the first used of them are the caller's until Release
	used    int
}

// span is a range of bytes of a body, end excluded.
type span struct{ start, end uint32 }

var requests = sync.Pool{New: func() any { return new(Request) }}

// NewRequest returns an empty Request.
func NewRequest() *Request { return requests.Get().(*Request) }

// Release gives the memory of r back, the bodies of its chunks included. Call
// it once neither r nor its chunks are used any more.
func (r *Request) Release() {
	r.reset(nil)
	if cap(r.encoded) > 2*maxPlainBytes { // one huge record is no reason to keep as much for ever
		r.joined, r.encoded, r.bodies = nil, nil, nil
		r.w.within, r.w.open = nil, nil
	}
	requests.Put(r)
}

func (r *Request) reset(body []byte) {
	r.body, r.w.b = body, body
	r.records, r.problems = r.records[:0], r.problems[:0]
	r.w.masked, r.w.until, r.cuts = r.w.masked[:0], 0, r.cuts[:0]
	r.array = false
	r.noID, r.byPlace, r.badTime, r.unknown, r.total, r.used = 0, 0, 0, 0, 0, 0
	r.months, r.from, r.to = r.months[:0], 0, 0
	r.excluded = nil
}

// Len returns the number of records.
func (r *Request) Len() int { return len(r.records) }

// Record returns record i as it was posted; it shares the memory of the body.
func (r *Request) Record(i int) []byte {
	return r.body[r.records[i].start:r.records[i].end]
}

// AllIDs says whether every record has an id that is not empty.
func (r *Request) AllIDs() bool { return r.noID == 0 }

// Identified says whether every record has an identity of its own, by its
// position or by its id: then a repeat of it is known whatever request it is in.
func (r *Request) Identified() bool { return r.byPlace == 0 }

// BadTimestamps returns how many records have no timestamp, or one that is not
// from 2000 to 2099.
func (r *Request) BadTimestamps() int { return r.badTime }

// UnknownMembers returns how many members are not in the specification.
func (r *Request) UnknownMembers() int { return r.unknown }

// Parse splits a posted body into records and checks every one, in one pass.
// The body is not copied: leave it as it is until the chunks are made. Values of
// members that lim masks are replaced in it; Body is what it is then. The error
// is a *SyntaxError, a *LimitError, or a *ProblemsError once the whole
// body was read; then the request holds nothing of use.
func (r *Request) Parse(body []byte, form Form, lim Limits) error {
	r.reset(body)
	if len(body) > math.MaxInt32 {
		return &LimitError{Code: CodeBodyTooLarge, Limit: math.MaxInt32, Detail: details[CodeBodyTooLarge]}
	}
	p := parser{Request: r, lim: lim.withDefaults()}
	if r.w.mask != p.lim.Mask { // names that are masked must not be remembered
		r.w.mask, r.w.names, r.w.valueNames = p.lim.Mask, names{}, names{}
	}
	if err := p.parse(form); err != nil {
		return err
	}
	if len(r.w.masked) > 0 {
		r.hide()
		for i, one := range r.records {
			if one.size() > p.lim.RecordBytes { // short secrets became longer
				return &LimitError{Code: CodeRecordTooLarge, Index: i, Limit: p.lim.RecordBytes, Detail: details[CodeRecordTooLarge]}
			}
		}
	}
	r.leaveOut(len(lim.Exclude))
	return nil
}

// Body is the body as it is kept: what was posted, without what is masked.
func (r *Request) Body() []byte { return r.body }

// Limits bounds what one request may hold. A zero field means its default.
type Limits struct {
	Records     int // records in one request; default 50 000
	RecordBytes int // bytes of one record, as posted and masked; default 8 MiB
	Depth       int // nesting of one record, itself counted; default 64, at most 1000

	Tenants []string // whose records may be posted; nil for all, empty for none

	Exclude []flow.Exclusion // records that are checked and not kept

	Mask *Mask // members whose values are secrets; default those called password

	Shaped bool // refuse objects that have no member of a record: other JSON than records
}

func (l Limits) withDefaults() Limits {
	if l.Records == 0 {
		l.Records = 50_000
	}
	if l.RecordBytes == 0 {
		l.RecordBytes = 8 << 20
	}
	if l.Depth == 0 {
		l.Depth = 64
	}
	l.Depth = min(l.Depth, deepest)
	if l.Mask == nil {
		l.Mask = defaultMask
	}
	return l
}

// MaxMonths is of how many months the timestamps of one request may be. Each month is a
// partition of flow.records, and an insert of its own that uses up the window of
// insert tokens.
const MaxMonths = 24

// inMonths notes the month of a timestamp, and says whether the request may be of it, too.
func (r *Request) inMonths(ms int64) bool {
	if r.from <= ms && ms < r.to {
		return true
	}
	month := flow.Month(ms)
	if !slices.Contains(r.months, month) {
		if len(r.months) == MaxMonths {
			return false
		}
		r.months = append(r.months, month)
	}
	y, m, _ := time.UnixMilli(ms).UTC().Date()
	r.from, r.to = time.Date(y, m, 1, 0, 0, 0, 0, time.UTC).UnixMilli(), time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	return true
}

const (
	// deepest is the nesting the ingester still follows. It bounds the stack.
	deepest = 1000

	// maxProblems is how many problems of a request are told.
	maxProblems = 100
)

// DefaultTenant is the tenant of records that name none, as engines without
// tenants call it.
const DefaultTenant = "<default>"

// checkTenant refuses the record just read if it is of a tenant whose records
// the caller may not post: value.tenantId says which. A caller that posts under a source
// can still name any key of it: tenants that do not trust each other need
// sources of their own.
func (p *parser) checkTenant() {
	v := p.w.get(fieldTenantID)
	name := DefaultTenant
	if v.kind > kindNull {
		switch text := p.w.text(v); {
		case text == nil: // true, an object or a list: no tenant has such a name
			name = ""
		case len(text) > 0:
			name = string(text)
		}
	}
	if name != "" && slices.Contains(p.lim.Tenants, name) {
		return
	}
	p.problem(fieldTenantID, CodeOtherTenant)
	if n := len(p.problems); p.total == n { // it was kept
		const most = 64
		p.problems[n-1].said = fmt.Sprintf("the access token is not for the tenant %.*q", most, name)
	}
}
