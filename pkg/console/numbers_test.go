package console_test

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"html"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// shownNumber is a number on a page, and where it leads.
type shownNumber struct{ text, exact, href string }

var figures = regexp.MustCompile(`<a class="fig"(?: tabindex="-1")?(?: title="([^"]*)")? href="([^"]*)">(?:<text[^>]*>)?(.*?)(?:</text>)?</a>`)

// numbersOn are the numbers of a page that lead to queries.
func numbersOn(page string) (all []shownNumber) {
	for _, m := range figures.FindAllStringSubmatch(page, -1) {
		if href := html.UnescapeString(m[2]); strings.HasPrefix(href, "/query?of=") {
			all = append(all, shownNumber{html.UnescapeString(m[3]), m[1], href})
		}
	}
	return all
}

// value is the number as it is shown, or exactly as its tooltip has it.
func (n shownNumber) value() (float64, error) {
	text, _, _ := strings.Cut(n.text, " %")
	if n.exact != "" {
		text, _, _ = strings.Cut(n.exact, " ")
	}
	return strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
}

// run asks the statement that a number leads to.
func (s *site) run(t *testing.T, csrf, href string) string {
	t.Helper()
	_, query, _ := strings.Cut(href, "?")
	form, err := url.ParseQuery(query)
	fatal(t, err)
	form.Set("csrf", csrf)
	res, body := s.post("/query.csv", form)
	rows, err := csv.NewReader(strings.NewReader(body)).ReadAll()
	if res.StatusCode != http.StatusOK || err != nil || len(rows) != 2 || len(rows[0]) != 1 || rows[0][0] != "value" {
		t.Fatalf("%s answers %s, want one number (%v):\n%s", href, res.Status, err, body)
	}
	return rows[1][0]
}

// testNumbers follows numbers of each page to their queries, which must give them:
// of each kind two, and for a token of some tenants one. Those of other rows
// differ in their condition alone.
func testNumbers(t *testing.T, w *world) {
	for token, tenant := range map[string]string{reader: "<default>", tenants: "a"} {
		s, csrf := w.open(t, token)
		at := fmt.Sprintf("/instance?source=cluster-a&key=%d", w.incident(t, tenant).Instance.Key)
		parent := w.caller(t, tenant)
		seen := map[string]bool{}
		for _, path := range []string{
			"/processes?window=all", "/process?source=cluster-a&id=order&window=all", "/process?source=cluster-a&id=order&version=2&window=all",
			"/process/elements?source=cluster-a&id=order&window=all", "/process/elements?source=cluster-a&id=order&version=2&window=all",
			"/instances?window=all", at, parent,
		} {
			res, body := s.get(path)
			wants(t, path, res, body, http.StatusOK)
			kinds := map[string][]shownNumber{}
			for _, n := range numbersOn(body) {
				u, err := url.Parse(n.href)
				fatal(t, err)
				kinds[u.Query().Get("get")] = append(kinds[u.Query().Get("get")], n)
			}
			if len(kinds) == 0 {
				t.Errorf("%s of %s leads to no query", path, token)
			}
			for kind, all := range kinds {
				if seen[kind] {
					continue
				}
				seen[kind] = true
				chosen := []shownNumber{all[len(all)/2]}
				if token == reader && len(all) > 1 {
					chosen = append(chosen, all[0])
				}
				for _, n := range chosen {
					want, err := n.value()
					if got, problem := strconv.ParseFloat(s.run(t, csrf, n.href), 64); err != nil || problem != nil || math.Abs(got-want) > .001 {
						t.Errorf("%s: %q leads to %s, which gives %v (%v %v)", path, n.text, n.href, got, err, problem)
					}
				}
			}
		}
		for _, kind := range []string{
			"list.active", "list.failed", "list.p95", "versions.instances", "versions.incidents", "versions.p50", "bars.instances", "heat.executions", "heat.total",
			"tokens.active", "troubles.open", "variants.instances", "variants.p50", "instance.took", "instance.raised", "spans.took", "spans.failures",
			"variables.changes", "records.shown",
		} {
			if !seen[kind] {
				t.Errorf("no page of %s has a number %s", token, kind)
			}
		}
		w.diagramNumbers(t, s, csrf, at)
	}
}

// caller is the page of an instance that has called another.
func (w *world) caller(t *testing.T, tenant string) string {
	t.Helper()
	for _, i := range w.truth.Instances {
		if i.Tenant == tenant && i.ParentInstance > 0 && i.FirstSeen != 0 {
			return fmt.Sprintf("/instance?source=cluster-a&key=%d", i.Key)
		}
	}
	t.Fatalf("no instance of %s was called", tenant)
	return ""
}

// diagramNumbers follows the numbers that the script puts on diagrams.
func (w *world) diagramNumbers(t *testing.T, s *site, csrf, instance string) {
	t.Helper()
	data := func(page, name string, into any) (base string) {
		t.Helper()
		_, body := s.get(page)
		found := regexp.MustCompile(`data-` + name + `="([^"]*)" data-numbers="([^"]*)"`).FindStringSubmatch(body)
		if found == nil {
			t.Fatalf("%s has no diagram", page)
		}
		fatal(t, json.Unmarshal([]byte(html.UnescapeString(found[1])), into))
		return html.UnescapeString(found[2])
	}
	check := func(base, get, row string, want uint64) {
		t.Helper()
		href := base + "&" + url.Values{"get": {get}, "row": {row}}.Encode()
		if got := s.run(t, csrf, href); got != fmt.Sprint(want) {
			t.Errorf("%s of %s is %s, on the diagram it is %d", get, row, got, want)
		}
	}
	type mark struct{ Count, Active, Open uint64 }
	var happened, now map[string]mark
	of := "source=cluster-a&id=order&window=all"
	base := data("/process/elements?"+of, "heat", &happened)
	checked := 0
	for id, h := range happened {
		if checked++; checked <= 3 {
			check(base, "turns.executions", "id:"+id, h.Count)
		}
	}
	base = data("/process?"+of, "heat", &now)
	checked = 0
	for id, h := range now {
		if checked++; checked > 2 && h.Open == 0 || checked > 8 {
			continue
		}
		check(base, "tokens.active", "id:"+id, h.Active)
		check(base, "troubles.open", "id:"+id, h.Open)
	}
	if len(happened) == 0 || len(now) == 0 {
		t.Errorf("the diagram shows %d elements where something has happened, and %d where something is", len(happened), len(now))
	}
	var marks map[string]struct {
		State       string
		Count, Open uint64
	}
	base = data(instance, "marks", &marks)
	for id, m := range marks {
		if m.Open > 0 {
			check(base, "spans.open", "element_id:"+id, m.Open)
			check(base, "steps.times", "id:"+id, m.Count)
		}
	}
}

// testNumbersKeepToTenants: a link of a number is no way around what a token may see.
func testNumbersKeepToTenants(t *testing.T, w *world) {
	s, csrf := w.open(t, tenants)
	other := w.incident(t, "<default>")
	const at = "&at=1763712000000"
	for path, status := range map[string]int{
		"/query": http.StatusForbidden,
		"/query?sql=SELECT+count()+FROM+flow.records":                                            http.StatusForbidden,
		"/query?of=/sources" + at + "&get=partitions.records":                                    http.StatusForbidden,
		"/query?of=/sources" + at + "&get=partitions":                                            http.StatusForbidden,
		"/query?of=/now" + at + "&get=list.active":                                               http.StatusNotFound,
		"/query?of=//elsewhere/processes" + at + "&get=list":                                     http.StatusBadRequest,
		"/query?of=/processes" + at + "&get=list.everything":                                     http.StatusNotFound,
		"/query?of=/processes" + at + "&get=instance.took":                                       http.StatusNotFound,
		"/query?of=/processes&at=soon&get=list.active":                                           http.StatusBadRequest,
		"/query?of=%25&at=1&get=list.active":                                                     http.StatusBadRequest,
		"/query?of=/process" + at + "&get=heat.p50":                                              http.StatusBadRequest,
		"/query?of=/processes" + at + "&get=list.active&row=1=1":                                 http.StatusBadRequest,
		"/query?of=/processes" + at + "&get=list.active&row=" + url.QueryEscape("1 OR source:x"): http.StatusBadRequest,
		fmt.Sprintf("/query?of=%s%s&get=spans", url.QueryEscape(fmt.Sprintf("/instance?source=cluster-a&key=%d", other.Instance.Key)), at): http.StatusNotFound,
	} {
		res, body := s.get(path)
		wants(t, path, res, body, status)
	}
	ask := func(form url.Values) string {
		t.Helper()
		form.Set("csrf", csrf)
		form.Set("at", "1763712000000")
		res, body := s.post("/query.csv", form)
		if res.StatusCode != http.StatusOK {
			t.Errorf("%v: %s", form, res.Status)
		}
		return body
	}
	// The statement that is typed beside a number is not run.
	if got := ask(url.Values{"of": {"/processes?window=all"}, "get": {"list.active"}, "sql": {"SELECT 'all' AS value"}}); strings.Contains(got, "all") {
		t.Errorf("a token of some tenants has run its own statement: %s", got)
	}
	// What stands in a row stays a text, and instances of others are none.
	for _, value := range []string{`x' OR '1' = '1`, `\' OR 1 --`, "{a:String}", "$statement", "x\x00y"} {
		if got := ask(url.Values{"of": {"/processes?window=all"}, "get": {"list.instances"}, "row": {"process:" + value}}); got != "value\n0\n" {
			t.Errorf("a process named %q: %q", value, got)
		}
		if got := ask(url.Values{"of": {"/process?window=all&source=cluster-a&id=" + url.QueryEscape(value)}, "get": {"versions.instances"}, "param_a": {"' OR 1 --"}}); got != "value\n0\n" {
			t.Errorf("the page of a process named %q: %q", value, got)
		}
	}
	key := fmt.Sprint(other.Instance.Key)
	if got := ask(url.Values{"of": {"/instance?source=cluster-a&key=" + key}, "get": {"instance.raised"}}); got != "value\n0\n" {
		t.Errorf("the incidents of another tenant's instance: %q", got)
	}
	for _, get := range []string{"list", "versions", "heat", "tokens", "troubles", "variants", "follows"} {
		of := "/process?window=all&source=cluster-a&id=order"
		if get == "list" {
			of = "/processes?window=all"
		}
		res, body := s.get("/query?" + url.Values{"of": {of}, "at": {"1763712000000"}, "get": {get}}.Encode())
		wants(t, get, res, body, http.StatusOK, "readonly", "tenant IN (&#39;a&#39;, &#39;b&#39;)")
	}
}
