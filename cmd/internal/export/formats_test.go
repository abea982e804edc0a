package export_test

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/export"
	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

// readers read the events of a file, in its order.
var readers = map[string]func(t *testing.T, r io.Reader) []step{
	"xes": readXES, "csv": readCSV, "ndjson": readNDJSON, "parquet": readParquet,
}

// step is an event that was read.
type step struct {
	instance string
	at       time.Time
	line     string
}

// write exports and returns the name of the file.
func write(t *testing.T, w *world, s export.Selection, format, name string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	fatal.If(t, export.Run(t.Context(), export.Config{ClickHouse: w.address, Selection: s, Variables: chosen, Format: format, File: file}))
	return file
}

func open(t *testing.T, file string) io.Reader {
	t.Helper()
	content, err := os.ReadFile(file)
	fatal.If(t, err)
	if !strings.HasSuffix(file, ".gz") {
		return bytes.NewReader(content)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(content))
	fatal.If(t, err)
	return unpacked
}

// TestEachFormatMatchesTheSimulation reads the logs, and compares them with the simulation.
func TestEachFormatMatchesTheSimulation(t *testing.T) {
	w := simulated(t)
	from := time.Date(2025, 11, 21, 5, 20, 0, 0, time.UTC)
	for _, c := range []struct {
		name, format, file string
		of                 export.Selection
	}{
		{"all of it as CSV", "csv", "log.csv", export.Selection{}},
		{"all of it as NDJSON", "ndjson", "log.ndjson", export.Selection{}},
		{"all of it as Parquet", "parquet", "log.parquet", export.Selection{}},
		{"a process, compressed", "xes", "log.xes.gz", export.Selection{Process: "order"}},
		{"a tenant, compressed", "csv", "log.csv.gz", export.Selection{Tenant: "acme"}},
		{"an engine, compressed", "ndjson", "log.ndjson.gz", export.Selection{Source: "cluster-b", Process: "claim"}},
		{"a time", "parquet", "log.parquet", export.Selection{From: from, To: from.Add(20 * time.Minute)}},
		{"nothing as XES", "xes", "log.xes", export.Selection{Process: "no such process"}},
		{"nothing as CSV", "csv", "log.csv", export.Selection{Process: "no 'such\\' process"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := write(t, w, c.of, c.format, c.file)
			all := readers[c.format](t, open(t, file))
			want, got := w.steps(c.of), lines(all)
			slices.Sort(want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-truth +log:\n%s", diff)
			}
			inOrder(t, all)
		})
	}
}

func lines(all []step) []string {
	var texts []string
	for _, s := range all {
		texts = append(texts, s.line)
	}
	slices.Sort(texts)
	return texts
}

// inOrder fails when the events of an instance are not adjacent, or not in time order.
func inOrder(t *testing.T, all []step) {
	t.Helper()
	seen := map[string]bool{}
	for i, s := range all {
		if i > 0 && all[i-1].instance == s.instance {
			if s.at.Before(all[i-1].at) {
				t.Errorf("%s comes after %s", s.line, all[i-1].line)
			}
			continue
		}
		fatal.When(t, seen[s.instance], "the events of %s are not adjacent", s.instance)
		seen[s.instance] = true
	}
}

// TestAnExportThatFailsLeavesNoFile: ClickHouse fails before its answer or within it, like old
// and new versions, or the command is interrupted.
func TestAnExportThatFailsLeavesNoFile(t *testing.T) {
	t.Parallel()
	whole := map[string]string{"csv": "\"a\"\n", "ndjson": "{\"a\":1}\n", "xes": "{}\n", "parquet": "PAR1", "ocel": "\"a\"\t{}\n"}
	for name, c := range map[string]struct {
		answer func(out http.ResponseWriter, whole string)
		want   string
	}{
		"before its answer": {func(out http.ResponseWriter, _ string) {
			http.Error(out, "Code: 241. DB::Exception: memory", http.StatusInternalServerError)
		}, "Code: 241"},
		"beyond the rows of its user": {func(out http.ResponseWriter, whole string) {
			_, _ = io.WriteString(out, whole+"Code: 396. DB::Exception: Limit for result exceeded\n")
		}, "raise --analyst-rows"},
		"as old versions": {func(out http.ResponseWriter, whole string) {
			_, _ = io.WriteString(out, whole+"Code: 241. DB::Exception: memory (version 24.8)\n")
		}, "ClickHouse failed while answering: "},
		"by breaking off": {func(out http.ResponseWriter, whole string) {
			_, _ = io.WriteString(out, whole)
			_ = http.NewResponseController(out).Flush()
			panic(http.ErrAbortHandler)
		}, "unexpected EOF"},
	} {
		for _, format := range slices.Sorted(maps.Keys(whole)) {
			t.Run(name+" "+format, func(t *testing.T) {
				server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) { c.answer(out, whole[format]) }))
				defer server.Close()
				folder := t.TempDir()
				err := export.Run(t.Context(), export.Config{ClickHouse: server.URL, Format: format, File: filepath.Join(folder, "log")})
				left, _ := os.ReadDir(folder)
				if err == nil || !strings.Contains(err.Error(), c.want) || len(left) > 0 {
					t.Errorf("got %v, want %q in it; left behind %v", err, c.want, left)
				}
			})
		}
	}
}

// TestBadOutputIsRefused has an error that names the file, and leaves nothing.
func TestBadOutputIsRefused(t *testing.T) {
	t.Parallel()
	w := simulated(t)
	dir := t.TempDir()
	there := filepath.Join(dir, "there.xes")
	fatal.If(t, os.WriteFile(there, []byte("mine"), 0o600))
	for _, c := range []struct{ name, format, file, want string }{
		{"a file that is there", "xes", there, "there.xes already exists"},
		{"Parquet that is compressed twice", "parquet", filepath.Join(dir, "a.parquet.gz"), "compressed already"},
		{"no such folder", "csv", filepath.Join(dir, "no", "a.csv"), "no such file"},
		{"no such format", "xml", filepath.Join(dir, "a.xml"), "csv, ndjson, parquet, xes, or ocel"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := export.Run(t.Context(), export.Config{ClickHouse: w.address, Format: c.format, File: c.file})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
	entries, err := os.ReadDir(dir)
	if content, _ := os.ReadFile(there); err != nil || len(entries) != 1 || string(content) != "mine" {
		t.Errorf("left behind: %v, %v, %q", entries, err, content)
	}
}

func readCSV(t *testing.T, r io.Reader) (all []step) {
	t.Helper()
	rows, err := csv.NewReader(r).ReadAll()
	fatal.If(t, err)
	for _, row := range rows[1:] {
		of := map[string]string{}
		for i, name := range rows[0] {
			of[name] = row[i]
		}
		all = append(all, read(t, of))
	}
	return all
}

func readNDJSON(t *testing.T, r io.Reader) (all []step) {
	t.Helper()
	d := json.NewDecoder(r)
	d.UseNumber()
	for {
		var row map[string]any
		err := d.Decode(&row)
		if err == io.EOF {
			return all
		}
		fatal.If(t, err)
		of := map[string]string{}
		for name, value := range row {
			if value != nil {
				of[name] = fmt.Sprint(value)
			}
		}
		all = append(all, read(t, of))
	}
}

// readParquet reads it with the engine, by the documented types.
func readParquet(t *testing.T, r io.Reader) []step {
	t.Helper()
	name, _ := clickhousetest.FreshDatabase(t)
	engine := clickhousetest.Shared(t)
	clickhousetest.Exec(t, engine, "CREATE TABLE "+name+".log (`case:concept:name` String, `concept:name` String, `lifecycle:transition` String, `time:timestamp` DateTime64(3, 'UTC'), `org:resource` String, `concept:instance` String, `bpmn:type` String, `case:version` Nullable(Int64), `bpmn:name` String, `case:name` String, `case:parent` String, `case:caller` Nullable(Int64), `case:root` String, `case:variable.amount` String, `case:variable.note` String) ENGINE = MergeTree ORDER BY tuple()")
	post := func(query string, body io.Reader) io.Reader {
		res, err := http.Post(engine.HTTP()+"/?date_time_output_format=iso&query="+url.QueryEscape(query), "application/octet-stream", body)
		fatal.If(t, err)
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		fatal.When(t, err != nil || res.StatusCode != http.StatusOK, "%s: %s %v", query, answer, err)
		return bytes.NewReader(answer)
	}
	post("INSERT INTO "+name+".log SETTINGS input_format_skip_unknown_fields = 1, max_insert_threads = 1, input_format_parallel_parsing = 0 FORMAT Parquet", r)
	return readNDJSON(t, post("SELECT * FROM "+name+".log FORMAT JSONEachRow", http.NoBody))
}

// read reads an event with the names of columns.
func read(t *testing.T, of map[string]string) step {
	t.Helper()
	at, err := time.Parse(time.RFC3339, of["time:timestamp"])
	fatal.If(t, err)
	var more []string
	for _, column := range []string{"bpmn:name", "case:name", "case:parent", "case:caller", "case:root"} {
		more = append(more, of[column])
	}
	for _, variable := range chosen {
		more = append(more, of["case:variable."+variable])
	}
	return step{of["case:concept:name"], at, line(of["case:concept:name"], of["concept:name"], of["lifecycle:transition"], at.UnixMilli(),
		of["concept:instance"], of["bpmn:type"], of["org:resource"], more...)}
}

// xesAttribute is an attribute of any type.
type xesAttribute struct {
	XMLName xml.Name
	Key     string `xml:"key,attr"`
	Value   string `xml:"value,attr"`
}

// readXES reads the events of a log. make foreign validates logs against a schema.
func readXES(t *testing.T, r io.Reader) (all []step) {
	t.Helper()
	var log struct {
		Traces []struct {
			Attributes []xesAttribute `xml:",any"`
			Events     []struct {
				Attributes []xesAttribute `xml:",any"`
			} `xml:"event"`
		} `xml:"trace"`
	}
	fatal.If(t, xml.NewDecoder(r).Decode(&log))
	for _, trace := range log.Traces {
		of := map[string]string{}
		for _, a := range trace.Attributes {
			of["case:"+a.Key] = a.Value
		}
		for _, e := range trace.Events {
			delete(of, "org:resource")
			delete(of, "bpmnElementName")
			for _, a := range e.Attributes {
				of[a.Key] = a.Value
			}
			of["bpmn:type"], of["bpmn:name"] = of["bpmnElementType"], of["bpmnElementName"]
			all = append(all, read(t, of))
		}
	}
	return all
}

// stored is the HTTP address of a database with the events of an engine, each as key, value type, intent, and value.
func stored(t *testing.T, events ...[4]string) string {
	t.Helper()
	name, address := clickhousetest.FreshDatabase(t)
	db, err := warehouse.Open(warehouse.Config{URL: address}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	fatal.If(t, err)
	defer db.Close()
	fatal.If(t, db.Migrate(t.Context()))
	var records []string
	for i, e := range events {
		records = append(records, fmt.Sprintf(`{"partitionId":1,"position":%d,"timestamp":%d,"key":%s,"recordType":"EVENT","valueType":%q,"intent":%q,"value":{%s}}`, i+1, 1763701200000+i, e[0], e[1], e[2], e[3]))
	}
	c := new(record.Columns)
	fatal.If(t, c.Append(&flow.Message{Seq: 1, Topic: "flow.0.record", Received: time.Now(), Source: "+a", Body: []byte("[" + strings.Join(records, ",") + "]")}))
	fatal.If(t, db.Insert(t.Context(), record.Block{Columns: c, To: c.Rows(), Token: "FLOW_0@1:1-1:0", StoredAt: time.Now().UnixMilli()}))
	return clickhousetest.Shared(t).HTTP() + "/" + name
}

// TestNoCellIsAFormula: CSV quotes texts that a spreadsheet would run as a formula, and numbers
// stay numbers; other formats keep texts unchanged.
func TestNoCellIsAFormula(t *testing.T) {
	t.Parallel()
	of := `"bpmnProcessId":"@SUM(1)","version":1,"processInstanceKey":7,"flowScopeKey":7,"elementId":"=1+1","tenantId":"-acme","bpmnElementType":`
	address := stored(t, [4]string{"7", "PROCESS_INSTANCE", "ELEMENT_ACTIVATED", of + `"PROCESS"`}, [4]string{"8", "PROCESS_INSTANCE", "ELEMENT_ACTIVATED", of + `"TASK"`},
		[4]string{"9", "VARIABLE", "CREATED", `"processInstanceKey":7,"scopeKey":7,"name":"n","value":"-5.5"`}, [4]string{"10", "VARIABLE", "CREATED", `"processInstanceKey":7,"scopeKey":7,"name":"=m","value":"\"-5+1\""`})
	for format, want := range map[string]string{"csv": `"'+a/7","'=1+1","start"`, "ndjson": `"case:concept:name":"+a/7","concept:name":"=1+1"`} {
		var out bytes.Buffer
		fatal.If(t, export.Run(t.Context(), export.Config{ClickHouse: address, Variables: []string{"n", "=m"}, Format: format, File: "-", Stdout: &out}))
		if got := out.String(); !strings.Contains(got, want) || strings.Contains(got, `"@SUM(1)"`) == (format == "csv") || format == "csv" && !strings.Contains(got, `"-5.5","'-5+1"`) {
			t.Errorf("%s has %s, want %s", format, got, want)
		}
	}
}

// TestTheRootOfCallsOfCalls: an instance names its caller and the root of all calls; a variable
// of an inner scope is not an attribute of the case.
func TestTheRootOfCallsOfCalls(t *testing.T) {
	t.Parallel()
	var events [][4]string
	for key, parent := range map[int]int{100: -2, 200: 100, 300: 200} {
		of := fmt.Sprintf(`"bpmnProcessId":"p","version":1,"processInstanceKey":%d,"parentProcessInstanceKey":%d,"parentElementInstanceKey":%d,"elementId":"e","bpmnElementType":`, key, parent, parent+1)
		events = append(events, [4]string{fmt.Sprint(key), "PROCESS_INSTANCE", "ELEMENT_ACTIVATED", of + `"PROCESS","flowScopeKey":-1`},
			[4]string{fmt.Sprint(key + 1), "PROCESS_INSTANCE", "ELEMENT_ACTIVATED", of + fmt.Sprintf(`"CALL_ACTIVITY","flowScopeKey":%d`, key)},
			[4]string{fmt.Sprint(key + 2), "VARIABLE", "CREATED", fmt.Sprintf(`"processInstanceKey":%d,"scopeKey":%d,"name":"v","value":"%d"`, key, key+1, key)},
			[4]string{fmt.Sprint(key + 3), "VARIABLE", "CREATED", fmt.Sprintf(`"processInstanceKey":%d,"scopeKey":%d,"name":"w","value":"%d"`, key, key, key)})
	}
	address := stored(t, events...)
	var out bytes.Buffer
	fatal.If(t, export.Run(t.Context(), export.Config{ClickHouse: address, Variables: []string{"v", "w"}, Format: "csv", File: "-", Stdout: &out}))
	rows, err := csv.NewReader(&out).ReadAll()
	fatal.If(t, err)
	var got []string
	for _, row := range rows {
		got = append(got, strings.Join(row[15:], " "))
	}
	slices.Sort(got)
	want := []string{"   '+a/100  100", " '+a/100 101 '+a/100  200", " '+a/200 201 '+a/100  300", "case:name case:parent case:caller case:root case:variable.v case:variable.w"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
