package console_test

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"sluice/pkg/console"
	"sluice/pkg/flow"
	"sluice/pkg/load/simulator"
)

// open is a console of the world, signed in with a token.
func (w *world) open(t *testing.T, token string) (s *site, csrf string) {
	t.Helper()
	s = newSite(t, func(c *console.Config, deps *console.Deps) {
		c.Operate, deps.Warehouse = "https://operate.example/", w.db
		deps.Questions = []console.Question{{
			Name: "ages", Asks: "How old are they?", Means: "In years.", SQL: "SELECT number AS n, {word:String} AS word FROM numbers(3) WHERE {from:DateTime64(3, 'UTC')} < now64()",
			Parameters: []console.Parameter{{Name: "word", Means: "any word", Example: "it's"}},
		}}
	})
	return s, s.signIn(token)
}

// incident is an open incident of a tenant.
func (w *world) incident(t *testing.T, tenant string) *simulator.Incident {
	t.Helper()
	for _, i := range w.truth.Incidents {
		if i.ResolvedAt == 0 && i.Instance.Tenant == tenant && i.Process.BpmnProcessID == "order" {
			return i
		}
	}
	t.Fatalf("no incident of an order of %s is open", tenant)
	return nil
}

// testPages checks that each page shows the events of the world, and links its numbers
// to lists.
func testPages(t *testing.T, w *world) {
	s, _ := w.open(t, reader)
	i := w.incident(t, "<default>")
	instance := fmt.Sprintf("/instance?key=%d&amp;source=cluster-a", i.Instance.Key)
	get := func(path string, status int, texts ...string) string {
		t.Helper()
		res, body := s.get(path)
		wants(t, path, res, body, status, texts...)
		if strings.Contains(body, "Not available") || strings.Contains(body, "ZgotmplZ") {
			t.Errorf("%s is not whole:\n%s", path, body)
		}
		return body
	}
	get("/processes", http.StatusOK, "Processes</h1>", "last 24 hours", "claim", "state=ACTIVE", "state=OPEN")
	get("/process?source=cluster-a&id=order&window=all", http.StatusOK, "data-xml=\"/definition?key=", `>card_refused</span> → <span data-element="paid">`, "<svg class=\"bars\"", "With incidents", "Active elements", "at=now",
		`data-later="/process/elements?id=order&amp;source=cluster-a&amp;window=all"><p><a href="/process/elements?id=order&amp;source=cluster-a&amp;window=all">`)
	get("/process/elements?source=cluster-a&id=order&window=all", http.StatusOK, "back_order", "data-heat=", "data-is=\"p95\"", `href="/process?id=order&amp;source=cluster-a&amp;window=all"`)
	get("/process/elements?source=cluster-a&id=order&version=2", http.StatusOK, "version <span class=\"id\">2</span>")
	get("/process/elements?source=cluster-a&id=nothing", http.StatusOK, "No instance of this period entered")
	get("/process/elements?source=cluster-a", http.StatusBadRequest, "lacks source or id")
	get("/process?source=cluster-a&id=order&version=1&window=all", http.StatusOK, "version 1", "Drop the filter Version")
	get("/process?source=cluster-a&id=nothing", http.StatusOK, "No diagram, and no instance")
	get("/process?source=cluster-a&id=nothing&window=all", http.StatusNotFound, "does not exist")
	get(fmt.Sprintf("/definition?source=cluster-a&key=%d", i.Process.DefinitionKey), http.StatusOK, "<bpmndi:BPMNShape")
	get("/definition?source=cluster-a&key=7", http.StatusNotFound)

	// An incident is found by its key, its message, and a variable.
	get("/instances?q="+itoa(i.Instance.Key), http.StatusOK, instance, ">instance key<")
	get("/instances?q="+itoa(i.Key), http.StatusOK, instance, ">key of a record<")
	get("/instances?window=all&q="+url.QueryEscape(i.ErrorMessage[:30]), http.StatusOK, instance)
	get("/instances?window=all&q=nothing+says+this", http.StatusOK, "No matches")
	get("/instances?incident=open&any=1&source=cluster-a&id=order", http.StatusOK, instance)
	v := w.variable(t, i.Instance)
	get("/instances?window=all&q="+url.QueryEscape(v.Name+"="+v.Value), http.StatusOK, v.Name+" = ")
	body := get(strings.ReplaceAll(instance, "&amp;", "&"), http.StatusOK, "incident", i.ErrorType, i.ElementID, "<svg class=\"gantt\"", v.Name, "data-marks=", "ELEMENT_ACTIVATED",
		fmt.Sprintf(`href="https://operate.example/processes/%d"`, i.Instance.Key))
	seen := map[string]bool{}
	for _, in := range w.truth.Instances { // a migrated instance shows the migration; a caller shows incidents of called instances
		if in.MigratedElement > 0 && in.StartedAt > 0 && !seen["migrated"] {
			seen["migrated"] = true
			get(fmt.Sprintf("/instance?source=cluster-a&key=%d", in.Key), http.StatusOK, "Migrations and modifications", "to the definition")
		}
		if in.Incidents > 0 && in.ParentInstance > 0 && !seen["called"] {
			seen["called"] = true
			get(fmt.Sprintf("/instance?source=cluster-a&key=%d", in.ParentInstance), http.StatusOK, "Incidents of called instances", itoa(in.Key))
		}
		if in.JobFailures > 0 && !seen["failed"] {
			seen["failed"] = true
			get(fmt.Sprintf("/instance?source=cluster-a&key=%d", in.Key), http.StatusOK, "events</summary>", `FAILED <span class="text">2 retries left, `)
		}
	}
	if len(seen) != 3 {
		t.Errorf("the world has only %v", seen)
	}
	_, after, _ := strings.Cut(body, `href="/record?`)
	record, _, _ := strings.Cut(after, `"`)
	get("/record?"+strings.ReplaceAll(record, "&amp;", "&"), http.StatusOK, "cluster-a", "value_type", "received_at")
	get("/record?day=x", http.StatusBadRequest)
	get("/instance?source=cluster-a&key=17", http.StatusNotFound, "does not exist")
}

func itoa(n int64) string { return fmt.Sprint(n) }

func (w *world) variable(t *testing.T, in *simulator.Instance) *simulator.Variable {
	t.Helper()
	for _, v := range w.truth.Variables {
		if v.Instance == in {
			return v
		}
	}
	t.Fatalf("instance %d has no variable", in.Key)
	return nil
}

// testTenants requests pages with a token of some tenants.
func testTenants(t *testing.T, w *world) {
	s, _ := w.open(t, tenants)
	theirs, other := w.incident(t, "a"), w.incident(t, "<default>")
	for path, status := range map[string]int{
		"/query": http.StatusForbidden, "/query/views": http.StatusForbidden, "/query?sql=SELECT+1": http.StatusForbidden, "/processes": http.StatusOK,
		fmt.Sprintf("/instance?source=cluster-a&key=%d", theirs.Instance.Key): http.StatusOK,
		fmt.Sprintf("/instance?source=cluster-a&key=%d", other.Instance.Key):  http.StatusNotFound,
	} {
		res, body := s.get(path)
		wants(t, path, res, body, status)
		if strings.Contains(body, "/query?sql=") {
			t.Errorf("%s leads to a statement, which the token may not run", path)
		}
	}
	// User input is not executed as SQL.
	for _, typed := range []string{"$tenants", "$process", "$source", "x' OR '1' = '1", `x\' OR 1 --`, "$columns $instances"} {
		typed = url.QueryEscape(typed)
		for _, path := range []string{"/process?source=%s&id=%[1]s", "/instances?window=all&q=%s&source=%[1]s&id=%[1]s", "/instances?window=all&q=a%%3D%s", "/instances?state=ACTIVE&source=%s&id=%[1]s"} {
			path = fmt.Sprintf(path, typed)
			res, body := s.get(path)
			wants(t, path, res, body, http.StatusOK)
			if strings.Contains(body, "Not available") || strings.Contains(body, `href="/instance?`) {
				t.Errorf("%s finds something, or fails:\n%s", path, body)
			}
		}
	}

	// A tenant can see the diagrams of its instances.
	res, body := s.get(fmt.Sprintf("/definition?source=cluster-a&key=%d", theirs.Process.DefinitionKey))
	wants(t, "their diagram", res, body, http.StatusOK, "<bpmn:process")
	for tenant, versions := range map[string]int{"a": 2, "nobody": 0} {
		p := console.Ask(w.db, []string{tenant}).Process(t.Context(), "cluster-a", "order", 0, console.Between(w.start, w.end))
		if p.Definitions.Err != nil || len(p.Definitions.Rows) != versions {
			t.Errorf("%s sees %d versions (%v), want %d", tenant, len(p.Definitions.Rows), p.Definitions.Err, versions)
		}
	}
	for _, q := range []string{itoa(other.Instance.Key), itoa(other.Key)} {
		res, body := s.get("/instances?window=all&q=" + q)
		wants(t, q, res, body, http.StatusOK, "No matches")
	}
	res, body = s.get("/instances?window=all&q=" + url.QueryEscape(other.ErrorMessage[:20]))
	wants(t, "search", res, body, http.StatusOK)
	for _, in := range w.truth.Instances {
		if in.Tenant != "a" && strings.Contains(body, itoa(in.Key)) {
			t.Errorf("an instance of another tenant was found")
		}
	}
}

func testQuery(t *testing.T, w *world) {
	s, csrf := w.open(t, reader)
	res, body := s.get("/query?question=ages")
	wants(t, "a question", res, body, http.StatusOK, "FROM numbers(3)", `name="param_word" value="it&#39;s"`, `name="param_from"`, `data-link="/query?question=ages"`)
	const filter = "from=2026-01-01T00%3A00%3A00Z&id=order&to=2026-01-02T00%3A00%3A00Z"
	res, body = s.get("/query?question=ages&" + filter)
	wants(t, "a question about the filter of other pages", res, body, http.StatusOK, `name="param_from" value="2026-01-01T00:00:00Z"`, "Drop the filter Process, not applied here", `action="/query?`+html.EscapeString(filter)+`#answer"`)
	res, body = s.get("/query?id=order&sql=" + url.QueryEscape("SELECT {process:String}"))
	wants(t, "a parameter of the filter of other pages", res, body, http.StatusOK, `name="param_process" value="order"`, `aria-label="Drop the filter Process"`)

	const sql = "SELECT 'so <b>bold</b>' AS text, number AS n, toDateTime('2026-01-02 03:04:05', 'UTC') + number AS at, NULL AS nothing, [1, 2] AS list FROM numbers(2)"
	res, body = s.get("/query?sql=" + url.QueryEscape(sql))
	wants(t, "a link", res, body, http.StatusOK, "so &lt;b&gt;bold")
	if strings.Contains(body, "Answer</h2>") {
		t.Error("a link runs its statement")
	}
	res, body = s.post("/query", url.Values{"sql": {sql}})
	wants(t, "no csrf", res, body, http.StatusForbidden)
	res, body = s.post("/query", url.Values{"sql": {sql}, "csrf": {csrf}})
	wants(t, "run", res, body, http.StatusOK, "2 rows</a>", "so &lt;b&gt;bold&lt;/b&gt;</td>", "2026-01-02T03:04:06.000Z", "NULL", "[1,2]", "data-plot=", "/query?sql=SELECT")
	if strings.Contains(body, "<b>bold") {
		t.Error("a stored value is not escaped")
	}
	res, body = s.post("/query", url.Values{"question": {"ages"}, "sql": {"SELECT {word:String} AS word"}, "param_word": {"o'clock"}, "csrf": {csrf}})
	wants(t, "a parameter", res, body, http.StatusOK, "o&#39;clock</td>", "1 row</a>", "param_word=o%27clock")
	res, body = s.post("/query", url.Values{"sql": {"SELECT number FROM numbers(100000)"}, "csrf": {csrf}})
	wants(t, "many rows", res, body, http.StatusOK, `The first <a class="fig" href="#sql">1,000 rows`)
	res, body = s.post("/query", url.Values{"sql": {"SELECT nothing FROM nowhere"}, "csrf": {csrf}})
	wants(t, "a mistake", res, body, http.StatusOK, `role="alert"`, "nowhere")

	// Times are exact, dates have no time zone, and large values are truncated.
	res, body = s.post("/query", url.Values{"sql": {"SELECT toDate('2026-01-02') AS day, toDateTime64('2026-01-02 03:04:05.123456', 6, 'UTC') AS at, toDateTime(0, 'UTC') AS begin"}, "csrf": {csrf}})
	wants(t, "times", res, body, http.StatusOK, ">2026-01-02</td>", `title="2026-01-02T03:04:05.123456Z"`, `title="1970-01-01T00:00:00.000Z"`)
	for sql, says := range map[string]string{
		"SELECT repeat('ü', 100000) AS long, number FROM numbers(3)":         "Long values are truncated",
		"SELECT repeat('x', 16000) AS long FROM numbers(900)":                "there are more",
		"SELECT repeat(toString(number), 1000000) AS long FROM numbers(200)": "Limit for result exceeded",
	} {
		res, body = s.post("/query", url.Values{"sql": {sql}, "csrf": {csrf}})
		wants(t, sql, res, body[:min(len(body), 4000)]+body[max(0, len(body)-4000):], http.StatusOK)
		if !strings.Contains(body, says) || len(body) > 9<<20 {
			t.Errorf("%s: a page of %d bytes, without %q or too large", sql, len(body), says)
		}
	}
	res, body = s.post("/query", url.Values{"sql": {"SELECT 1 --" + strings.Repeat("x", 30_000)}, "csrf": {csrf}})
	wants(t, "a long statement", res, body[:min(len(body), 4000)], http.StatusOK)
	if strings.Contains(body, "Link that keeps it") || !strings.Contains(body, "Too long for a link") {
		t.Error("a statement of 30,000 characters has a link that no browser would follow")
	}

	// Numbers are formatted, and drawn by time or name.
	for sql, says := range map[string][]string{
		"SELECT 1234567 AS n, 1234567 AS key, 0.123456 AS share, 90500 AS p50_ms, toDecimal64(1234.5, 2) AS cost, maxSimpleState(toNullable(7654321)) AS most": {">1,234,567</td>", ">1234567</td>", `title="0.123456">0.1235</td>`, `title="90500">90 s</td>`, ">1,234</td>", ">7,654,321</td>"},
		"SELECT number % 2 AS version, toDateTime(intDiv(number, 2), 'UTC') AS at, number AS n FROM numbers(8)":                                                {`{&#34;title&#34;:&#34;n&#34;,&#34;x&#34;:[0,1,2,3],&#34;series&#34;:[{&#34;label&#34;:&#34;1&#34;,&#34;values&#34;:[1,3,5,7]},`},
		"SELECT concat('e', toString(number)) AS name, toDateTime(number, 'UTC') AS last, number AS n FROM numbers(3)":                                         {`<svg class="bars"`, ">e2</text>"},
		"SELECT 'a' AS source, 'x y' AS bpmn_process_id, 17 AS process_instance_key, now() AS at, rand() AS n FROM numbers(3)":                                 {`<a href="/instances?q=17&amp;source=a">17</a>`, `<a href="/process?id=x+y&amp;source=a">x y</a>`, "!<figure"},
		"SELECT 'a' AS source, '  ' AS bpmn_process_id":       {`source=a">&#34;  &#34;</a>`}, // an invisible name
		"SELECT number AS a, number * 2 AS b FROM numbers(5)": {"!<figure"},                   // neither a time nor a name
		"SELECT {from:DateTime} + 1 AS next":                  {`title="2026-01-02T03:04:06.000Z"`},
	} {
		_, body = s.post("/query", url.Values{"sql": {sql}, "csrf": {csrf}, "param_from": {"2026-01-02T04:04:05+01:00"}})
		for _, text := range says {
			if not := strings.HasPrefix(text, "!"); not == strings.Contains(body, strings.TrimPrefix(text, "!")) {
				t.Errorf("%s: %s\n%s", sql, text, body[strings.Index(body, "<form id"):])
			}
		}
	}
	res, body = s.get("/query/views")
	wants(t, "views", res, body, http.StatusOK, `<summary class="id">v_process_instances</summary><p class="text">One row for each process instance`, `<dt class="id">bpmn_process_id <small>String</small></dt><dd class="text">`)

	for _, wrong := range []string{"SET max_result_rows = 1", "USE system", "/* SELECT */ INSERT INTO flow.changes SELECT 1", "DROP TABLE flow.records", ""} {
		for _, path := range []string{"/query", "/query.csv"} {
			res, body = s.post(path, url.Values{"sql": {wrong}, "csrf": {csrf}})
			if !strings.Contains(body, "Queries are read-only") && !strings.Contains(body, "query is empty") {
				t.Errorf("%s of %q: %s\n%s", path, wrong, res.Status, body)
			}
		}
	}
	res, body = s.post("/query", url.Values{"sql": {"-- how many\n/* of\nthem */ (SELECT 42 AS n)"}, "csrf": {csrf}})
	wants(t, "comments", res, body, http.StatusOK, "42</td>")

	res, body = s.post("/query.csv", url.Values{"csrf": {csrf}, "sql": {"SELECT arrayJoin(['=1+1', '@x', '-a', 'plain, text']) AS text, -5 AS n, NULL AS nothing"}})
	wants(t, "csv", res, body, http.StatusOK)
	rows, err := csv.NewReader(strings.NewReader(body)).ReadAll()
	want := "[[text n nothing] ['=1+1 -5 ] ['@x -5 ] ['-a -5 ] [plain, text -5 ]]"
	if err != nil || fmt.Sprint(rows) != want || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/csv") {
		t.Errorf("got %q, %v, want %s", rows, err, want)
	}
	res, body = s.post("/query.csv", url.Values{"csrf": {csrf}, "sql": {"SELECT number FROM numbers(200000)"}})
	wants(t, "a large file", res, body, http.StatusOK, "more than 100000 rows")
}

// testTail follows records as they are stored.
func testTail(t *testing.T, w *world) {
	lanes := oneLane
	lanes.Lanes = []console.Lane{{Position: flow.LaneState{Done: w.messages}}}
	s := newSite(t, func(_ *console.Config, deps *console.Deps) { deps.Warehouse, deps.Stream = w.db, still{lanes} })
	s.signIn(tenants)
	res, body := s.get("/records?type=DEPLOYMENT")
	wants(t, "the page", res, body, http.StatusOK, `data-tail="/records/new?type=DEPLOYMENT"`)

	type news struct {
		Rows         []struct{ ID, Path string }
		Error, Place string
	}
	ask := func(place string) (got news) {
		t.Helper()
		_, body := s.get("/records/new?" + url.Values{"type": {"DEPLOYMENT"}, "place": {place}}.Encode())
		if err := json.Unmarshal([]byte(body), &got); err != nil || got.Error != "" || got.Place == "" {
			t.Fatalf("got %s (%v)", body, err)
		}
		return got
	}
	first := ask("") // existing records are not returned
	const one = `{"id":"1-%d","partitionId":1,"position":%d,"key":%d,"timestamp":1763704800000,"recordType":"EVENT","valueType":"%s","intent":"CREATED","value":{"tenantId":"%s"}}`
	for i, kind := range []string{"DEPLOYMENT", "DEPLOYMENT", "RESOURCE"} {
		at := 900_000_000 + i
		w.store(t, fmt.Sprintf(one, at, at, at, kind, []string{"a", "other", "a"}[i]))
	}
	last := ask(first.Place)
	if again := ask(last.Place); len(first.Rows) != 0 || len(last.Rows) != 1 || len(again.Rows) != 0 {
		t.Fatalf("got %+v, %+v, then %+v, want the deployment of tenant a alone, once, after it was stored", first, last, again)
	}
	res, body = s.get("/records/new?place=x")
	wants(t, "another place", res, body, http.StatusBadRequest)
	res, body = s.get(last.Rows[0].Path)
	wants(t, last.Rows[0].Path, res, body, http.StatusOK, "900000000", "DEPLOYMENT")
}

// TestPagesReportMissingParts requests pages while ClickHouse is down.
func TestPagesReportMissingParts(t *testing.T) {
	s := newSite(t, nil)
	s.signIn(reader)
	for _, path := range []string{"/processes", "/process?source=a&id=b", "/instances?q=x"} {
		res, body := s.get(path)
		wants(t, path, res, body, http.StatusOK, `Not available: <span class="text">connection refused`)
	}
	res, body := s.get("/process/elements?source=a&id=b")
	wants(t, "elements", res, body, http.StatusOK, `Not available: <span class="text">connection refused`,
		`<a href="/process/elements?id=b&amp;source=a&amp;window=24h" data-again>Try again</a>`)
	res, body = s.get("/instance?source=a&key=1")
	wants(t, "an instance", res, body, http.StatusBadGateway, "connection refused")
}
