package record

import (
	"fmt"
	"slices"
)

// Limits bounds what one request may hold. A zero field means its default.
type Limits struct {
	Records     int // records in one request; default 50 000
	RecordBytes int // bytes of one record as posted; default 8 MiB
	Depth       int // nesting of one record, itself counted; default 64, at most 1000

	Tenants []string // whose records may be posted; nil for all, empty for none

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
// the caller may not post: value.tenantId says which. Who posts under a source
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
