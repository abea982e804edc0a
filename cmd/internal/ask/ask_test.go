package ask_test

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/ask"
	"sluice/cmd/internal/statement"
	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

func TestMain(m *testing.M) { clickhousetest.Main(m) }

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// made is a database with two instances, of 2 s and 60 s, that began an hour ago, and one that began last year.
func made(t *testing.T) statement.Server {
	t.Helper()
	name, address := clickhousetest.FreshDatabase(t)
	db, err := warehouse.Open(warehouse.Config{URL: address}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	fatal.If(t, err)
	defer db.Close()
	fatal.If(t, db.Migrate(t.Context()))
	var records []string
	event := func(at time.Time, intent string, key int) {
		records = append(records, fmt.Sprintf(`{"partitionId":1,"position":%d,"timestamp":%d,"key":%d,"recordType":"EVENT","valueType":"PROCESS_INSTANCE","intent":"%s",
			"value":{"bpmnProcessId":"=1+1","version":1,"processInstanceKey":%[3]d,"elementId":"p","bpmnElementType":"PROCESS","tenantId":"a|\tb"}}`, len(records)+1, at.UnixMilli(), key, intent))
	}
	for key, begun := range map[int]time.Time{7: now.Add(-time.Hour), 8: now.Add(-time.Hour), 9: now.AddDate(-1, 0, 0)} {
		event(begun, "ELEMENT_ACTIVATED", key)
		event(begun.Add(map[int]time.Duration{7: 2 * time.Second, 8: time.Minute, 9: time.Hour}[key]), "ELEMENT_COMPLETED", key)
	}
	c := new(record.Columns)
	m := flow.Message{Seq: 1, Topic: "flow.0.record", Received: now, Source: "engine", Body: []byte("[" + strings.Join(records, ",") + "]")}
	fatal.If(t, c.Append(&m))
	fatal.If(t, db.Insert(t.Context(), record.Block{Columns: c, To: c.Rows(), Token: "FLOW_0@1:1-1:0", StoredAt: now.UnixMilli()}))
	return statement.Server(clickhousetest.Shared(t).HTTP() + "/" + name)
}

// TestEachFormatHasTheAnswer asks about the last 7 days, which have two of the three
// instances.
func TestEachFormatHasTheAnswer(t *testing.T) {
	server := made(t)
	for format, want := range map[string]string{
		"table": `source  bpmn_process_id  process_name  version  tenant_id  instances  avg_ms  p50_ms  p90_ms  p95_ms  p99_ms  max_ms
engine  =1+1                                 1  a|\tb              2   31000   31000   54200   57100   59420   60000
`,
		"csv": `source,bpmn_process_id,process_name,version,tenant_id,instances,avg_ms,p50_ms,p90_ms,p95_ms,p99_ms,max_ms
engine,'=1+1,,1,a|	b,2,31000,31000,54200,57100,59420,60000
`,
		"json": `[
{"source":"engine","bpmn_process_id":"=1+1","process_name":"","version":1,"tenant_id":"a|\tb","instances":2,"avg_ms":31000,"p50_ms":31000,"p90_ms":54200,"p95_ms":57100,"p99_ms":59420,"max_ms":60000}
]
`,
		"md": `| source | bpmn_process_id | process_name | version | tenant_id | instances | avg_ms | p50_ms | p90_ms | p95_ms | p99_ms | max_ms |
|---|---|---|--:|---|--:|--:|--:|--:|--:|--:|--:|
| engine | =1+1 |  | 1 | a\|\\tb | 2 | 31000 | 31000 | 54200 | 57100 | 59420 | 60000 |
`,
	} {
		var out strings.Builder
		fatal.If(t, ask.Run(t.Context(), ask.Config{ClickHouse: server, Question: "durations", Now: now, Format: format, To: &out}))
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", format, diff)
		}
	}
}

// TestEveryQuestionIsAnswered asks each, with its examples, in every format: an answer
// without rows has its columns.
func TestEveryQuestionIsAnswered(t *testing.T) {
	server := made(t)
	questions, err := warehouse.Questions()
	fatal.If(t, err)
	for _, q := range questions {
		values := map[string]string{}
		for _, p := range q.Parameters {
			values[p.Name] = p.Example
		}
		var table, comma, object strings.Builder
		for format, out := range map[string]*strings.Builder{"table": &table, "csv": &comma, "json": &object} {
			if err := ask.Run(t.Context(), ask.Config{ClickHouse: server, Question: q.Name, Values: values, Now: now, Format: format, To: out}); err != nil {
				t.Errorf("%s as %s: %v", q.Name, format, err)
			}
		}
		rows, err := csv.NewReader(strings.NewReader(comma.String())).ReadAll()
		var objects []map[string]any
		if err := json.Unmarshal([]byte(object.String()), &objects); err != nil {
			t.Errorf("%s: %v in %s", q.Name, err, object.String())
		}
		if err != nil || len(rows) != 1+len(objects) || strings.Count(table.String(), "\n") != len(rows) || len(rows[0]) < 3 {
			t.Errorf("%s: %v; CSV has %d lines, JSON %d objects, the table is\n%s", q.Name, err, len(rows), len(objects), table.String())
		}
	}
}

// TestWhatIsWrongIsNamed: an unknown question, parameter, or format.
func TestWhatIsWrongIsNamed(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]ask.Config{
		"no question duration: sluice ask lists all": {Question: "duration"},
		"funnel needs first (element id, such as order_placed) and second (element id, such as ship): give each with --set name=value": {Question: "funnel"},
		"funnel needs second (":                               {Question: "funnel", Values: map[string]string{"first": "a"}},
		"usage has no parameter process: it has none":         {Question: "usage", Values: map[string]string{"process": "p"}},
		"stuck has no parameter from: it has now, quiet=3600": {Question: "stuck", Values: map[string]string{"from": "2026-01-01"}},
		"unknown format xml":                                  {Format: "xml"},
		"--clickhouse-http is not an address":                 {Question: "durations", ClickHouse: "user:secret@"},
	} {
		cfg.To = io.Discard
		if err := ask.Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

// TestAllQuestionsAreListed with their parameters and defaults.
func TestAllQuestionsAreListed(t *testing.T) {
	t.Parallel()
	questions, err := warehouse.Questions()
	fatal.If(t, err)
	var out strings.Builder
	fatal.If(t, ask.Run(t.Context(), ask.Config{Format: "table", To: &out}))
	if lines := strings.Count(out.String(), "\n"); lines != 1+len(questions) {
		t.Errorf("%d lines of %d questions", lines, len(questions))
	}
	if line := "throughput  How many instances start and end, by hour and version?  zone=UTC, process, tenant, from, to"; !strings.Contains(strings.Join(strings.Fields(out.String()), " "), strings.Join(strings.Fields(line), " ")) {
		t.Errorf("%q is not in\n%s", line, out.String())
	}
}

// TestTheStatementCanBePrinted: with its values, without running it.
func TestTheStatementCanBePrinted(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	err := ask.Run(t.Context(), ask.Config{Question: "incidents_by_type", Values: map[string]string{"process": `it's \`}, Now: now, SQL: true, To: &out, ClickHouse: "http://none/copy"})
	for _, part := range []string{"-- Which types of incidents", "FROM copy.v_incidents", `bpmn_process_id = 'it\'s \\'`, "'2026-02-22T12:00:00.000Z'", "'2026-03-01T12:00:00.000Z'"} {
		if err != nil || !strings.Contains(out.String(), part) {
			t.Errorf("%v; %q is not in\n%s", err, part, out.String())
		}
	}
}

// TestAnAnswerThatFailsIsNotPrinted: with an error within it, as of old versions, or before it.
func TestAnAnswerThatFailsIsNotPrinted(t *testing.T) {
	t.Parallel()
	head := `["source","key"]` + "\n" + `["String","Int64"]` + "\n"
	for body, want := range map[string]string{
		head + `["a","1"]` + "\nCode: 241. DB::Exception: memory\n": "ClickHouse failed while answering: Code: 241",
		head + `["a"`:                "ClickHouse failed while answering",
		"":                           "ClickHouse failed while answering",
		`["source"]` + "\n":          "ClickHouse failed while answering",
		`["a","b"]` + "\n" + `["x"]`: "ClickHouse failed while answering",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(out, body) }))
		var out strings.Builder
		err := ask.Run(t.Context(), ask.Config{ClickHouse: statement.Server(server.URL), Question: "usage", Format: "csv", To: &out})
		server.Close()
		if err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("of %q: %v, and %q was printed", body, err, out.String())
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(out, head+`["-1",-1.10]`+"\n"+`["0.30000000000000004",1.2345678901234567e-7]`+"\n"+`["=a","9007199254740993"]`+"\n"+`["b",4356762.54999999]`+"\n"+`["c",12345678901234.5]`+"\n"+`["@\u001b[2J",null]`+"\n")
	}))
	defer server.Close()
	for format, want := range map[string]string{
		"csv":   "source,key\n'-1,-1.1\n0.30000000000000004,0.000000123456789012\n'=a,9007199254740993\nb,4356762.55\nc,12345678901234\n'@\x1b[2J,\n",
		"json":  "[\n{\"source\":\"-1\",\"key\":-1.1},\n{\"source\":\"0.30000000000000004\",\"key\":0.000000123456789012},\n{\"source\":\"=a\",\"key\":9007199254740993},\n{\"source\":\"b\",\"key\":4356762.55},\n{\"source\":\"c\",\"key\":12345678901234},\n{\"source\":\"@\\u001b[2J\",\"key\":null}\n]\n",
		"table": "source                                key\n-1                                   -1.1\n0.30000000000000004  0.000000123456789012\n=a                       9007199254740993\nb                              4356762.55\nc                          12345678901234\n@\\x1b[2J\n",
	} {
		var out strings.Builder
		err := ask.Run(t.Context(), ask.Config{ClickHouse: statement.Server(server.URL), Question: "usage", Format: format, To: &out})
		if diff := cmp.Diff(want, out.String()); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", format, err, diff)
		}
	}
}
