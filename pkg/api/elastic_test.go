package api_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"sluice/pkg/api"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
)

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// exports makes an exporter's request to the Elasticsearch endpoints.
func (d *door) exports(method, path, body string, changes ...func(*http.Request)) *http.Response {
	d.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Authorization", basic("cluster-a", "engine"))
	r.Header.Set("Content-Type", "application/x-ndjson")
	for _, c := range changes {
		c(r)
	}
	w := httptest.NewRecorder()
	d.ElasticHandler().ServeHTTP(w, r)
	resp := w.Result()
	if got := resp.Header.Get("X-Elastic-Product"); got != "Elasticsearch" {
		d.t.Errorf("%s %s: X-Elastic-Product is %q: strict clients require it", method, path, got)
	}
	if got := resp.Header.Get("Content-Type"); got != "application/json" {
		d.t.Errorf("%s %s: Content-Type is %q, want application/json", method, path, got)
	}
	return resp
}

// exported is a record as Camunda's exporters post it.
func exported(partition, position int, intent string) string {
	return fmt.Sprintf(`{"partitionId":%d,"position":%d,"sourceRecordPosition":-1,"key":%d,"timestamp":1763700000000,"recordType":"EVENT","valueType":"JOB","intent":%q,"rejectionType":"NULL_VAL","rejectionReason":"","brokerVersion":"8.7.0","recordVersion":1,"sequence":2251799813685249,"authorizations":{},"value":{"bpmnProcessId":"order","processInstanceKey":7,"type":"pay"}}`,
		partition, position, partition<<51+position, intent)
}

// bulkOf pairs documents with actions as the exporters write them.
func bulkOf(docs ...string) string {
	var b strings.Builder
	for i, doc := range docs {
		fmt.Fprintf(&b, `{"index":{"_index":"zeebe-record_job_8.7.0_2025-11-21","_id":"1-%d","routing":"1"}}`+"\n%s\n", i+1, doc)
	}
	return b.String()
}

// bulkAnswer has the fields that strict clients require of the answer.
type bulkAnswer struct {
	Took   *int64 `json:"took"`
	Errors *bool  `json:"errors"`
	Items  []map[string]struct {
		Index  *string `json:"_index"`
		ID     *string `json:"_id"`
		Status int     `json:"status"`
		Result string  `json:"result"`
		Error  *struct{ Type, Reason string }
	} `json:"items"`
}

// took returns the answer to an accepted bulk, and fails if it was not accepted.
func took(t testing.TB, resp *http.Response) bulkAnswer {
	t.Helper()
	body := text(t, resp)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("got %s %s, want 200", resp.Status, body)
	}
	var a bulkAnswer
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	if a.Took == nil || a.Errors == nil {
		t.Fatalf("took or errors is missing in %s", body)
	}
	for _, item := range a.Items {
		for op, it := range item {
			if it.Index == nil || it.ID == nil || it.Status == 0 {
				t.Fatalf("_index, _id or status of %s is missing in %s", op, body)
			}
		}
	}
	return a
}

func (a bulkAnswer) statuses() (list []int) {
	for _, item := range a.Items {
		for _, it := range item {
			list = append(list, it.Status)
		}
	}
	return list
}

func TestABulkIsTakenInEveryForm(t *testing.T) {
	one, two := exported(1, 1, "CREATED"), exported(1, 2, "COMPLETED")
	packed := func(r *http.Request) {
		*r = *httptest.NewRequest(r.Method, r.URL.Path, strings.NewReader(gzipped(t, bulkOf(one, two))))
		r.Header.Set("Authorization", basic("a", "engine"))
		r.Header.Set("Content-Encoding", "gzip")
	}
	for name, tt := range map[string]struct {
		path, body string
		change     func(*http.Request)
	}{
		"as the exporters of 8.3 to 8.8": {"/_bulk", bulkOf(one, two), header("User-Agent", "elasticsearch-java/8.6.0")},
		"as that of 8.9": {"/_bulk", `{"index":{"_id":"1-1","_index":"i","routing":"1"}}` + "\n" + one + "\n" + `{"index":{"routing":"1","_id":"1-2","_index":"i"}}` + "\n" + two + "\n", func(r *http.Request) {
			r.Header.Set("Content-Type", "application/vnd.elasticsearch+json;compatible-with=8")
			r.Header.Set("Accept", "application/vnd.elasticsearch+json;compatible-with=8")
		}},
		"as OpenSearch's":          {"/_bulk", bulkOf(one, two), header("Content-Type", "application/json")},
		"chunked":                  {"/_bulk", bulkOf(one, two), func(r *http.Request) { r.ContentLength = -1 }},
		"gzip":                     {"/_bulk", "", packed},
		"the token alone":          {"/_bulk", bulkOf(one, two), header("Authorization", "Bearer engine")},
		"another user name":        {"/_bulk", bulkOf(one, two), header("Authorization", basic("", "engine"))},
		"index in the path":        {"/logs/_bulk", `{"create":{}}` + "\n" + one + "\n" + `{"index":{}}` + "\n" + two + "\n", nil},
		"a query":                  {"/_bulk?timeout=1m&filter_path=items.*.error", bulkOf(one, two), nil},
		"of Fluent Bit":            {"/_bulk/?pipeline=none", bulkOf(one, two), header("User-Agent", "Fluent-Bit")},
		"without the last newline": {"/_bulk", strings.TrimSuffix(bulkOf(one, two), "\n"), nil},
		"lines of Windows":         {"/_bulk", strings.ReplaceAll(bulkOf(one, two), "\n", "\r\n"), nil},
		"an empty line between":    {"/_bulk", bulkOf(one) + "\n" + bulkOf(two), nil},
		"spaces in the actions":    {"/_bulk", ` { "index" : { "_index" : "i\"\u00e4" , "version" : 3, "require_alias":false, "pipeline":null } } ` + "\n" + one + "\n" + bulkOf(two), nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, config())
			if tt.change == nil {
				tt.change = func(*http.Request) {}
			}
			a := took(t, d.exports(http.MethodPost, tt.path, tt.body, tt.change))
			if *a.Errors || !slices.Equal(a.statuses(), []int{201, 201}) {
				t.Errorf("errors %v, statuses %v, want none, and 201 twice", *a.Errors, a.statuses())
			}
			expect.Equal(t, "stored", canonical([]string{one, two}), canonical(d.stream.stored()))
			if n := d.held(t); n != 0 {
				t.Errorf("%v bytes of memory are still held", n)
			}
		})
	}
}

// TestInvalidRecordsAreDeadLettered: the others are accepted in order, and the exporter gets success
// for all.
func TestInvalidRecordsAreDeadLettered(t *testing.T) {
	good := []string{exported(1, 1, "CREATED"), exported(1, 2, "FAILED"), exported(1, 3, "COMPLETED")}
	for name, bad := range map[string]string{
		"no record at all":      `{"message":"hello","level":"INFO"}`,
		"no JSON":               `{"partitionId":1,`,
		"a wrong type":          strings.Replace(exported(1, 9, "X"), `"intent":"X"`, `"intent":[]`, 1),
		"two records in a line": exported(1, 9, "X") + exported(1, 10, "X"),
		"wrapped records":       `{"records":[` + exported(1, 9, "X") + `]}{"records":[` + exported(1, 10, "X") + `]}`,
		"nothing":               ``,
		"a text":                `"hello"`,
		"an invalid character":  `{"intent":"` + "\xff" + `","valueType":"JOB"}`,
		"nested too deep":       `{"valueType":"JOB","value":` + strings.Repeat(`[`, 80) + strings.Repeat(`]`, 80) + `}`,
		"too large":             `{"valueType":"JOB","intent":"` + strings.Repeat("x", 9<<10) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config()
			cfg.RecordBytes = 8 << 10
			d := newDoor(t, cfg)
			body := bulkOf(good[0], bad, good[1], good[2])
			for range 2 { // the exporter may resend it
				a := took(t, d.exports(http.MethodPost, "/_bulk", body))
				if *a.Errors || !slices.Equal(a.statuses(), []int{201, 201, 201, 201}) {
					t.Errorf("errors %v, statuses %v, want none: the exporter would repeat the bulk forever", *a.Errors, a.statuses())
				}
			}
			expect.Equal(t, "stored", canonical(append(slices.Clone(good), good...)), canonical(d.stream.stored()))
			if len(d.dead.all) != 1 || string(d.dead.all[0].Message.Body) != bad || d.dead.all[0].Code == "" || d.dead.all[0].Message.Subject != "engine-a" {
				t.Errorf("dead letters: %+v, want the line unchanged", d.dead.all)
			}
			if n := d.held(t); n != 0 {
				t.Errorf("%v bytes of memory are still held", n)
			}
		})
	}
	t.Run("nothing else", func(t *testing.T) {
		d := newDoor(t, config())
		took(t, d.exports(http.MethodPost, "/_bulk", bulkOf(`{}`, `[]`)))
		if len(d.dead.all) != 2 || len(d.stream.stored()) != 0 {
			t.Errorf("%d dead letters, %d stored, want 2 and none", len(d.dead.all), len(d.stream.stored()))
		}
	})
	t.Run("a password in it is masked", func(t *testing.T) {
		d := newDoor(t, config())
		took(t, d.exports(http.MethodPost, "/_bulk", bulkOf(`{"message":"x","password":"swordfish"}`, exported(1, 1, "X"),
			`{"key":[],"value":{"value":"\"swordfish\"","name":"Password"},"valueType":"VARIABLE"}`,
			`{"key":[],"value":{"value":"{\"login\":{\"password\":\"swordfish\"}}","name":"x"},"valueType":"VARIABLE"}`,
			`{"value":{"name":"password","value":"\"swordfi`)))
		if len(d.dead.all) != 4 {
			t.Fatalf("%d dead letters, want 4", len(d.dead.all))
		}
		for _, dead := range d.dead.all {
			if body := string(dead.Message.Body); strings.Contains(body, "swordf") || !strings.Contains(body, `***`) {
				t.Errorf("dead letter: %s", body)
			}
		}
	})
	t.Run("the source has too many", func(t *testing.T) {
		d := newDoor(t, config())
		d.dead.fault = flow.ErrDeadShare
		resp := d.exports(http.MethodPost, "/_bulk", bulkOf(good[0], `{}`))
		if body := text(t, resp); resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "60" || !strings.Contains(body, "dead_letters_full") || len(d.stream.stored()) != 0 {
			t.Errorf("answered %s %s and stored %v, want 429 and nothing", resp.Status, body, d.stream.stored())
		}
		took(t, d.exports(http.MethodPost, "/_bulk", bulkOf(good[0])))
	})
	t.Run("its records became too many", func(t *testing.T) {
		d := newDoor(t, config())
		d.dead.full = flow.ErrDeadShare
		resp := d.exports(http.MethodPost, "/_bulk", bulkOf(good[0]))
		if body := text(t, resp); resp.StatusCode != 429 || !strings.Contains(body, "dead_letters_full") || len(d.stream.stored()) != 0 {
			t.Errorf("answered %s %s and stored %v, want 429 and nothing", resp.Status, body, d.stream.stored())
		}
	})
	t.Run("no room for it", func(t *testing.T) {
		d := newDoor(t, config())
		d.dead.fault = &flow.RetryError{Err: flow.ErrFull}
		resp := d.exports(http.MethodPost, "/_bulk", bulkOf(good[0], `{}`))
		if body := text(t, resp); resp.StatusCode != 503 || !strings.Contains(body, "dead letters") || len(d.stream.stored()) != 0 {
			t.Errorf("answered %s %s and stored %v, want 503 and nothing", resp.Status, body, d.stream.stored())
		}
	})
}

func TestABulkThatIsRefused(t *testing.T) {
	good := bulkOf(exported(1, 1, "CREATED"))
	unavailable := func(context.Context) error { return &flow.RetryError{Err: flow.ErrUnavailable} }
	full := func(context.Context) error { return &flow.RetryError{Err: flow.ErrFull} }
	for name, tt := range map[string]struct {
		body   string
		change func(*http.Request)
		fault  func(context.Context) error
		status int
		says   string
	}{
		"no token":               {good, without("Authorization"), nil, 401, "token_missing"},
		"an unknown token":       {good, header("Authorization", basic("engine", "nobody's")), nil, 401, "token_invalid"},
		"a malformed password":   {good, header("Authorization", "Basic !!"), nil, 401, "token_missing"},
		"a token without rights": {good, header("Authorization", basic("a", "reader")), nil, 403, "records:write"},
		"nothing":                {"", nil, nil, 400, "empty_body"},
		"empty lines":            {"\n\n", nil, nil, 400, "has no actions"},
		"not a bulk":             {exported(1, 1, "X") + "\n" + exported(1, 2, "X") + "\n", nil, nil, 400, "line 1 of the bulk is not an action"},
		"an action alone":        {good + `{"index":{}}`, nil, nil, 400, "line 3 of the bulk has no document"},
		"a broken action":        {good + `{"index":{"_id":}}` + "\n{}\n", nil, nil, 400, "line 3"},
		"an unknown action":      {`{"frob":{}}` + "\n{}\n", nil, nil, 400, "line 1"},
		"more behind an action":  {`{"index":{}},` + "\n{}\n", nil, nil, 400, "line 1"},
		"NATS is away":           {good, nil, unavailable, 503, "stream_unavailable"},
		"the stream is full":     {good, nil, full, 503, "stream_full"},
		"broken gzip":            {good, header("Content-Encoding", "gzip"), nil, 400, "bad_compression"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, config())
			d.stream.before = tt.fault
			if tt.change == nil {
				tt.change = func(*http.Request) {}
			}
			resp := d.exports(http.MethodPost, "/_bulk", tt.body, tt.change)
			var f struct {
				Status int
				Error  struct{ Type, Reason string }
			}
			body := text(t, resp)
			fatal.If(t, json.Unmarshal([]byte(body), &f))
			if resp.StatusCode != tt.status || f.Status != tt.status || f.Error.Type == "" || !strings.Contains(body, tt.says) {
				t.Errorf("answered %s %s, want %d with %q", resp.Status, body, tt.status, tt.says)
			}
			if len(d.stream.stored()) != 0 || len(d.dead.all) != 0 {
				t.Errorf("%d stored, %d dead letters, want nothing", len(d.stream.stored()), len(d.dead.all))
			}
			if n := d.held(t); n != 0 {
				t.Errorf("%v bytes of memory are still held", n)
			}
		})
	}
}

func TestNothingIsChangedOrDeletedByABulk(t *testing.T) {
	d := newDoor(t, config())
	a := took(t, d.exports(http.MethodPost, "/_bulk", `{"delete":{"_index":"i","_id":"1"}}`+"\n"+bulkOf(exported(1, 1, "X"))+`{"update":{"_index":"i","_id":"1"}}`+"\n"+`{"doc":{}}`+"\n"))
	if !*a.Errors || !slices.Equal(a.statuses(), []int{400, 201, 400}) || a.Items[0]["delete"].Error == nil || a.Items[0]["delete"].Error.Type == "" {
		t.Errorf("got %+v, want an error for the first and the last", a)
	}
	if len(d.stream.stored()) != 1 {
		t.Errorf("stored: %v, want one", d.stream.stored())
	}
}

func TestWhatElseClientsOfElasticsearchAsk(t *testing.T) {
	d := newDoor(t, config())
	for _, tt := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/", "", 200, `"number":"8`},
		{"GET", "/", "", 200, `"build_flavor":"default"`},
		{"GET", "/", "", 200, `"tagline":"You Know, for Search"`},
		{"HEAD", "/", "", 200, ""},
		{"HEAD", "/_index_template/ecs-logstash", "", 404, ""},
		{"GET", "/_license?human=false", "", 200, `"type":"basic"`},
		{"GET", "/_license", "", 200, `"status":"active"`},
		{"GET", "/_cluster/health?wait_for_status=yellow", "", 200, `"status":"green"`},
		{"PUT", "/_ilm/policy/zeebe-record-retention-policy", `{"policy":{}}`, 200, `{"acknowledged":true}`},
		{"PUT", "/_component_template/zeebe-record-8.7.0", `{}`, 200, `{"acknowledged":true}`},
		{"PUT", "/_index_template/zeebe-record_job_8.7.0", `{}`, 200, `{"acknowledged":true}`},
		{"PUT", "/zeebe-record%2A/_settings?allow_no_indices=true", `{}`, 200, `{"acknowledged":true}`},
		{"GET", "/_plugins/_ism/policies/zeebe", "", 404, `"status":404`},
		{"PUT", "/_plugins/_ism/policies/zeebe", "{}", 200, `{"acknowledged":true}`},
		{"DELETE", "/_plugins/_ism/policies/zeebe", "", 200, `{"acknowledged":true}`},
		{"POST", "/_plugins/_ism/add/zeebe-record*", "{}", 200, `{"updated_indices":0,"failures":false,"failed_indices":[]}`},
		{"GET", "/zeebe-record_job/_search", "", 404, `"type":"no_such_route_exception"`},
		{"POST", "/zeebe-record_job/_doc", "{}", 404, `"status":404`},
	} {
		t.Run(tt.method+" "+tt.path, func(t *testing.T) {
			resp := d.exports(tt.method, tt.path, tt.body)
			if body := text(t, resp); resp.StatusCode != tt.status || !strings.Contains(body, tt.want) || !json.Valid([]byte(body)) {
				t.Errorf("answered %s %s, want %d with %s", resp.Status, body, tt.status, tt.want)
			}
		})
	}
}

// FuzzActions compares the reader of actions with a real JSON decoder.
func FuzzActions(f *testing.F) {
	for _, line := range []string{
		`{"index":{"_index":"a","_id":"1-1","routing":"1"}}`, `{"create":{}}`, ` { "index" : { "x" : -1.5e3 , "_id" : "\"\u00e4\\" } } `,
		`{"index":{"_id":null,"_index":true}}`, `{"index":{"_id":"a"}`, `{"index":{"_id":"a",}}`, `{"delete":{"_id":"a"}}x`, `{"index":{"n":01}}`,
		`{"index":{"_id":"\ud8"}}`, `{"index":{"_id":"a","_id":"b"}}`,
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		op, index, id, ok := api.Action([]byte(line))
		if !ok {
			return // it may accept less than JSON
		}
		var want map[string]map[string]json.RawMessage
		if err := json.Unmarshal([]byte(line), &want); err != nil {
			t.Fatalf("%q is taken, and is not an action: %v", line, err)
		}
		for name, got := range map[string][]byte{"_index": index, "_id": id} {
			if it := want[op][name]; got != nil && (len(it) == 0 || !json.Valid(got)) {
				t.Errorf("%q: %s is read as %s, want %s", line, name, got, it)
			}
		}
	})
}
