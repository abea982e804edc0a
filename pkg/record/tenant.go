package record

import (
	"fmt"
	"slices"
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
