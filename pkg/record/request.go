package record

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"sluice/pkg/flow"
)

// Form is the format of a body.
type Form int

const (
	// FormAuto is application/json: one record, an array of records, an object
	// with the array under "records" and without "value" and "valueType", or
	// several of those objects one after the other.
	FormAuto Form = iota

	// FormNDJSON is application/x-ndjson: one object after the other.
	FormNDJSON
)

// Request is a posted body, split into records and checked. Instances are pooled: see
// NewRequest and Release.
type Request struct {
	body       []byte
	records    []posted // in the order of the body, or of lanes after Cut
	*workspace          // from Parse until Cut, and during a later Cut; else nil
	again      bool     // Cut recreates the rows: records were refused, secrets masked, rows are too many, or were cut before
	large      bool     // its memory is not kept
	lanes      uint64   // the lanes of the source
	noID       int      // records without an id
	byPlace    int      // records without a deduplication key of their own
	badTime    int      // records with a missing or implausible timestamp
	unknown    int      // members that are not fields
	excluded   []int    // records excluded by each rule; nil without rules
	months     []int    // of the timestamps, such as 202511; at most MaxMonths
	from       int64    // the month of the last timestamp begins, ms since 1970,
	to         int64    // and ends before this

	cuts     []cut     // the values that were masked
	problems []problem // the first maxProblems
	total    int       // number of problems, unlisted ones included

	bodies [][]byte // of chunks; the first used of them are the caller's until Release
	used   int
}

// workspace is the memory of rows while they are made and cut. A request that waits for its answer has
// none, so that few exist and stay in the processor's cache.
type workspace struct {
	columns Columns // a row for each record; for those of a chunk if again
	joined  []byte  // the columns of a chunk
	encoded []byte  // the same compressed, in a worst-case buffer
}

var workspaces = sync.Pool{New: func() any { return new(workspace) }}

// takeWorkspace takes one from the pool, unless r has one.
func (r *Request) takeWorkspace() {
	if r.workspace == nil {
		r.workspace = workspaces.Get().(*workspace)
	}
	r.walker().b, r.walker().hashes = r.body, true
}

// returnWorkspace returns it to the pool, if r has one. A later Cut makes the rows again.
func (r *Request) returnWorkspace() {
	if r.workspace == nil {
		return
	}
	r.walker().b = nil
	if cap(r.encoded) > 2*maxPlainBytes || r.columns.Held() > 4*maxPlainBytes { // do not keep the memory of a huge request
		r.large = true
	} else {
		workspaces.Put(r.workspace)
	}
	r.workspace, r.again = nil, true
}

// span is a range of bytes of a body, end exclusive.
type span struct{ start, end uint32 }

var requests = sync.Pool{New: func() any { return new(Request) }}

// NewRequest returns an empty Request.
func NewRequest() *Request { return requests.Get().(*Request) }

// Release returns r to the pool, with the bodies of its chunks: the caller must not use
// them any more.
func (r *Request) Release() {
	r.returnWorkspace()
	if r.body = nil; !r.large { // Parse resets the rest
		requests.Put(r)
	}
}

func (r *Request) reset(body []byte) {
	r.body = body
	r.takeWorkspace()
	w := r.walker()
	r.records, r.problems = r.records[:0], r.problems[:0]
	w.masked, w.until, r.cuts = w.masked[:0], 0, r.cuts[:0]
	r.columns.Reset()
	r.columns.bind()
	r.again = false
	r.noID, r.byPlace, r.badTime, r.unknown, r.total, r.used = 0, 0, 0, 0, 0, 0
	r.months, r.from, r.to = r.months[:0], 0, 0
	r.excluded = nil
}

func (r *Request) walker() *walker { return &r.columns.reader.walker }

func (r *Request) Len() int { return len(r.records) }

// Record returns record i as posted; it aliases the body.
func (r *Request) Record(i int) []byte {
	return r.body[r.records[i].start:r.records[i].end]
}

// AllIDs reports whether every record has a non-empty id.
func (r *Request) AllIDs() bool { return r.noID == 0 }

// Identified reports whether every record has a deduplication key of its own, position or
// id: a repeat is then recognised in any request.
func (r *Request) Identified() bool { return r.byPlace == 0 }

// BadTimestamps counts the records without a timestamp from 2000 to 2099.
func (r *Request) BadTimestamps() int { return r.badTime }

// UnknownMembers counts the members outside the specification.
func (r *Request) UnknownMembers() int { return r.unknown }

// Parse splits a posted body into records and checks each, in one pass. It keeps body
// without copying it; the caller must not change it until the chunks are cut. Secrets are
// masked in place; Body is the result. The error is a *SyntaxError, a *LimitError, or,
// after the whole body was read, a *ProblemsError; r is then unusable.
func (r *Request) Parse(body []byte, form Form, lim Limits) error {
	r.reset(body)
	if len(body) > math.MaxInt32 {
		return &LimitError{Code: CodeBodyTooLarge, Limit: math.MaxInt32, Detail: details[CodeBodyTooLarge]}
	}
	p := parser{Request: r, w: r.walker(), lim: lim.withDefaults()}
	p.use(p.lim.Mask)
	if err := p.parse(form); err != nil {
		return err
	}
	if len(p.w.masked) > 0 {
		r.hide()
		for i, one := range r.records {
			if one.size() > p.lim.RecordBytes { // short secrets became longer
				return &LimitError{Code: CodeRecordTooLarge, Index: i, Limit: p.lim.RecordBytes, Detail: details[CodeRecordTooLarge]}
			}
		}
	}
	r.leaveOut(len(lim.Exclude))
	r.columns.fill(new(flow.Message))
	return nil
}

// Body is the posted body with secrets masked.
func (r *Request) Body() []byte { return r.body }

// Limits bounds one request. Zero means the default.
type Limits struct {
	Records     int // records in one request; default 50 000
	RecordBytes int // bytes of one record, as posted and masked; default 8 MiB
	Depth       int // nesting of one record, itself counted; default 64, at most 1000

	Tenants []string // whose records are accepted; nil for all, empty for none

	Exclude []flow.Exclusion // records to check and not keep

	Mask *Mask // members whose values are secrets; default those called password

	Shaped bool // refuse objects without any member of a record
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

// MaxMonths bounds the months of a request's timestamps. Each month is a partition of
// flow.records and an insert of its own, which uses up ClickHouse's deduplication window.
const MaxMonths = 24

// inMonths adds the month of a timestamp; false if that exceeds MaxMonths.
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
	// deepest is the deepest nesting that the ingester reads. It bounds the stack.
	deepest = 1000

	// maxProblems bounds the reported problems of a request.
	maxProblems = 100
)

// DefaultTenant is the tenant of records without one, as in engines without tenants.
const DefaultTenant = "<default>"

// checkTenant refuses the current record if its value.tenantId is not a tenant of the
// token. A token can still name any key of its source: tenants that do not trust each
// other need sources of their own.
func (p *parser) checkTenant() {
	v := p.w.get(fieldTenantID)
	name := DefaultTenant
	if v.kind > kindNull {
		switch text := p.w.text(v); {
		case text == nil: // not a string or number: no tenant has such a name
			name = ""
		case len(text) > 0:
			name = string(text)
		}
	}
	if name != "" && slices.Contains(p.lim.Tenants, name) {
		return
	}
	p.problem(fieldTenantID, CodeOtherTenant)
	if n := len(p.problems); p.total == n { // it is listed
		const limit = 64
		p.problems[n-1].said = fmt.Sprintf("the access token is not for the tenant %.*q", limit, name)
	}
}
