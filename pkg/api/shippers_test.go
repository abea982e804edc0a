package api_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// step is a request of a shipper, and what it looks for in the answer.
type step struct {
	method, path, body string
	headers            map[string]string
	status             int
	looksFor           string
}

// TestShippersPostAsTheyDo: the requests of common shippers, in the order and
// the form in which they send them, with what each takes for success. The two
// documents of each are stored as they came.
func TestShippersPostAsTheyDo(t *testing.T) {
	one, two := exported(1, 1, "CREATED"), exported(1, 2, "COMPLETED")
	ndjson := map[string]string{"Content-Type": "application/x-ndjson"}
	created := `{"create":{"_index":"logs"}}` + "\n" + one + "\n" + `{"create":{"_index":"logs"}}` + "\n" + two + "\n"
	for name, steps := range map[string][]step{
		"Vector": {
			{"GET", "/_cluster/health", "", nil, 200, `"status":"green"`},
			{"GET", "/", "", nil, 200, `"number":"8`},
			{"POST", "/_bulk?timeout=60s", `{"index":{"_index":"vector-2026.11.22","_type":"_doc"}}` + "\n" + one + "\n" + `{"index":{"_index":"vector-2026.11.22","_type":"_doc"}}` + "\n" + two + "\n", ndjson, 200, `,"errors":false,"items":[`},
		},
		"Fluent Bit": {
			{"POST", "/_bulk", created, map[string]string{"Content-Type": "application/x-ndjson", "User-Agent": "Fluent-Bit"}, 200, `"errors":false,"items":[`},
		},
		"Fluent Bit that names a pipeline": {
			{"POST", "/_bulk/?pipeline=none", created, ndjson, 200, `"errors":false,"items":[`},
		},
		"Logstash": {
			{"HEAD", "/", "", nil, 200, ""},
			{"GET", "/", "", nil, 200, `"build_flavor":"default"`},
			{"GET", "/_license", "", nil, 200, `"status":"active"`},
			{"HEAD", "/_index_template/ecs-logstash", "", nil, 404, ""},
			{"PUT", "/_index_template/ecs-logstash", `{"index_patterns":["ecs-logstash-*"]}`, nil, 200, `{"acknowledged":true}`},
			{"POST", "/_bulk?filter_path=errors,items.*.error,items.*.status", created, map[string]string{"Content-Type": "application/json", "Content-Encoding": "gzip"}, 200, `"status":201`},
		},
		"Beats": {
			{"GET", "/", "", nil, 200, `"tagline":"You Know, for Search"`},
			{"GET", "/_license?human=false", "", nil, 200, `"type":"basic"`},
			{"HEAD", "/_index_template/filebeat-8.17.0", "", nil, 404, ""},
			{"PUT", "/_index_template/filebeat-8.17.0", `{}`, nil, 200, `{"acknowledged":true}`},
			{"PUT", "/_ilm/policy/filebeat", `{}`, nil, 200, `{"acknowledged":true}`},
			{"POST", "/_bulk", created, map[string]string{"Content-Type": "application/vnd.elasticsearch+json; compatible-with=8", "Accept": "application/vnd.elasticsearch+json; compatible-with=8"}, 200, `"status":201`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, config())
			for _, s := range steps {
				body := s.body
				if s.headers["Content-Encoding"] == "gzip" {
					body = zipped(body)
				}
				resp := d.exports(s.method, s.path, body, func(r *http.Request) {
					for name, value := range s.headers {
						r.Header.Set(name, value)
					}
				})
				if said := text(t, resp); resp.StatusCode != s.status || s.method != http.MethodHead && !strings.Contains(said, s.looksFor) {
					t.Errorf("%s %s: answered %s %s, want %d with %s", s.method, s.path, resp.Status, said, s.status, s.looksFor)
				}
			}
			if diff := cmp.Diff([]string{one, two}, d.stream.stored()); diff != "" {
				t.Errorf("stored (-want +got):\n%s", diff)
			}
		})
	}
}

func zipped(body string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, body) // to memory
	_ = w.Close()
	return b.String()
}

// TestWhatHTTPSinksPost: bodies of Kafka Connect's HTTP sinks, batched or not,
// and of exporters that post arrays, at the api's own route.
func TestWhatHTTPSinksPost(t *testing.T) {
	one, two := exported(1, 1, "CREATED"), exported(1, 2, "COMPLETED")
	for name, tt := range map[string]struct {
		body, contentType string
		want              []string
	}{
		"one record of an HTTP sink":                {one, "application/json", []string{one}},
		"batch.prefix=[ separator=, suffix=]":       {"[" + one + "," + two + "]", "application/json", []string{one, two}},
		"batch.prefix=[ separator=,\\n suffix=]":    {"[" + one + ",\n" + two + "]\n", "application/json; charset=utf-8", []string{one, two}},
		"batch.separator=\\n, as it is by default":  {one + "\n" + two, "application/x-ndjson", []string{one, two}},
		"the array of Camunda's exporter over HTTP": {"[" + one + ", " + two + "]", "application/json", []string{one, two}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, config())
			resp := d.post(tt.body, header("Content-Type", tt.contentType))
			if said := text(t, resp); resp.StatusCode != http.StatusOK || strings.TrimSpace(said) != `{"status":"OK"}` {
				t.Fatalf("answered %s %s", resp.Status, said)
			}
			if diff := cmp.Diff(tt.want, d.stream.stored()); diff != "" {
				t.Errorf("stored (-want +got):\n%s", diff)
			}
		})
	}
}
