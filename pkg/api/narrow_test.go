package api_test

import (
	"net/http"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/record"
)

// TestATokenMayBeForSomeTenants: a request with a record of another tenant is refused whole, and
// the error lists these records and tenants.
func TestATokenMayBeForSomeTenants(t *testing.T) {
	forbidden := func(pointer string, index int, tenant string) record.Problem {
		return record.Problem{Index: index, Pointer: pointer + "/value/tenantId", Code: "tenant_forbidden", Detail: "the access token is not for the tenant " + tenant}
	}
	for _, tt := range []struct {
		name, token, body string
		status            int // 200: stored
		errors            []record.Problem
	}{
		{"of its own", "acme", `[{"id":"a","value":{"tenantId":"acme"}},{"id":"b","value":{"tenantId":"<default>"}}]`, 200, nil},
		{"of none, which is the default one", "acme", `[{"id":"a"},{"id":"b","value":{"tenantId":null}},{"id":"c","value":{"tenantId":""}}]`, 200, nil},
		{"with escapes", "acme", `{"id":"a","value":{"tenantId":"\u0061cme"}}`, 200, nil},
		{"of others", "acme", `[{"id":"a","value":{"tenantId":"acme"}},{"id":"b","value":{"tenantId":"other"}},{"id":"c","value":{"tenantId":"Acme"}}]`, 403,
			[]record.Problem{forbidden("#/1", 1, `"other"`), forbidden("#/2", 2, `"Acme"`)}},
		{"the last one counts", "acme", `{"id":"a","value":{"tenantId":"acme","tenantId":"other"}}`, 403, []record.Problem{forbidden("#", 0, `"other"`)}},
		{"in another value", "acme", `{"id":"a","value":{"tenantId":"other"},"value":{"tenantId":"acme"}}`, 200, nil},
		{"not a name", "acme", `{"id":"a","value":{"tenantId":["acme"]}}`, 403, []record.Problem{forbidden("#", 0, `""`)}},
		{"a number", "acme", `{"id":"a","value":{"tenantId":7}}`, 403, []record.Problem{forbidden("#", 0, `"7"`)}},
		{"a long name", "acme", `{"id":"a","value":{"tenantId":"` + strings.Repeat("x", 300) + `"}}`, 403, []record.Problem{forbidden("#", 0, `"`+strings.Repeat("x", 64)+`"`)}},
		{"also without the default one", "nobody", `{"id":"a"}`, 403, []record.Problem{forbidden("#", 0, `"<default>"`)}},
		{"no records", "nobody", `[]`, 200, nil},
		{"of any tenant", "engine", `{"id":"a","value":{"tenantId":"other"}}`, 200, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDoor(t, config())
			resp := d.post(tt.body, header("Authorization", tt.token))
			if tt.status == http.StatusOK {
				wantOK(t, resp)
				return
			}
			p := wantProblem(t, resp, tt.status, "tenant_forbidden")
			expect.Equal(t, "errors", tt.errors, p.Errors)
			if got := d.stream.stored(); len(got) != 0 {
				t.Errorf("stored is %q", got)
			}
		})
	}
	p := wantProblem(t, newDoor(t, config()).post(`[{"id":"a","value":{"tenantId":"other"}},{"key":"x"}]`, header("Authorization", "acme")), 422, "invalid_records")
	expect.Not(t, len(p.Errors) != 2 || p.Errors[0].Code != "tenant_forbidden" || p.Errors[1].Code != "not_an_integer", "with another mistake: %+v", p.Errors)
}

// TestATokenMayBeForSomeTables: the token neither reads nor changes fields of others.
func TestATokenMayBeForSomeTables(t *testing.T) {
	d := newDoor(t, config())
	for _, path := range []string{fieldPath("orders", "f"), fieldPath("a%2Fb", "f")} {
		wantOK(t, d.put(path, `{"name":"n"}`, header("Authorization", "acme")))
		if resp := d.get(path, header("Authorization", "acme")); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, resp.Status)
		}
		wantOK(t, d.del(path, header("Authorization", "acme")))
	}
	for token, path := range map[string]string{"acme": fieldPath("Orders", "f"), "nobody": fieldPath("orders", "f")} {
		wantOK(t, d.put(path, `{"name":"n"}`))
		as := header("Authorization", token)
		for _, resp := range []*http.Response{d.put(path, `{"name":"m"}`, as), d.get(path, as), d.del(path, as)} {
			wantProblem(t, resp, http.StatusForbidden, "table_forbidden")
		}
		if got := text(t, d.get(path)); !strings.Contains(got, `"name":"n"`) {
			t.Errorf("%s is %s", path, got)
		}
	}
}

// TestATokenMayLeaveRecordsOut: they are answered OK and not stored.
func TestATokenMayLeaveRecordsOut(t *testing.T) {
	d := newDoor(t, config())
	wantOK(t, d.post(`[{"id":"a","valueType":"JOB"},{"id":"b","valueType":"JOB_BATCH"},{"id":"c","valueType":"JOB_BATCH"}]`, header("Authorization", "sparing")))
	wantOK(t, d.post(`{"id":"b","valueType":"JOB_BATCH"}`, header("Authorization", "sparing")))
	if got := d.stream.stored(); len(got) != 1 || got[0] != `{"id":"a","valueType":"JOB"}` {
		t.Errorf("stored is %q", got)
	}
	if out, in := d.metric(t, "sluice_api_records_excluded_total", ""), d.metric(t, "sluice_api_records_total", ""); out != 3 || in != 1 {
		t.Errorf("%v records left out, %v accepted", out, in)
	}
}
