package export_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"

	"sluice/cmd/internal/export"
	"sluice/pkg/warehouse"
)

// readers read the events of a file, in the order in which they stand there.
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
func write(t *testing.T, w *world, s warehouse.Selection, format, name string) (string, export.Result) {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	r, err := export.Run(t.Context(), w.db, export.Config{Selection: s, Format: format, File: file})
	if err != nil {
		t.Fatal(err)
	}
	return file, r
}

func open(t *testing.T, file string) io.Reader {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(file, ".gz") {
		return bytes.NewReader(content)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	return unpacked
}

// TestEachFormatTellsTheTruth reads the logs back, and compares them with what
// has happened in the engines.
func TestEachFormatTellsTheTruth(t *testing.T) {
	w := simulated(t)
	from := time.Date(2025, 11, 21, 5, 20, 0, 0, time.UTC)
	for _, c := range []struct {
		name, format, file string
		of                 warehouse.Selection
	}{
		{"all of it as XES", "xes", "log.xes", warehouse.Selection{}},
		{"all of it as CSV", "csv", "log.csv", warehouse.Selection{}},
		{"all of it as NDJSON", "ndjson", "log.ndjson", warehouse.Selection{}},
		{"all of it as Parquet", "parquet", "log.parquet", warehouse.Selection{}},
		{"a process, compressed", "xes", "log.xes.gz", warehouse.Selection{Process: "order"}},
		{"a tenant, compressed", "csv", "log.csv.gz", warehouse.Selection{Tenant: "acme"}},
		{"an engine, compressed", "ndjson", "log.ndjson.gz", warehouse.Selection{Source: "cluster-b", Process: "claim"}},
		{"a time", "parquet", "log.parquet", warehouse.Selection{From: from, To: from.Add(20 * time.Minute)}},
		{"nothing", "xes", "log.xes", warehouse.Selection{Process: "no such process"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file, r := write(t, w, c.of, c.format, c.file)
			all := readers[c.format](t, open(t, file))
			want, got := w.steps(c.of), lines(all)
			slices.Sort(want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-truth +log:\n%s", diff)
			}
			if cases := w.cases(c.of); r.Instances != uint64(len(cases)) || r.Events != uint64(len(all)) || !r.Next.IsZero() {
				t.Errorf("said %+v of %d instances and %d events", r, len(cases), len(all))
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

// inOrder fails when the events of an instance are not together, or not in the
// order of time.
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
		if seen[s.instance] {
			t.Fatalf("the events of %s are not together", s.instance)
		}
		seen[s.instance] = true
	}
}

// TestElementsFollowEachOther sees that what ended before something began stands
// before it in the log, in the same millisecond too.
func TestElementsFollowEachOther(t *testing.T) {
	t.Parallel()
	w := simulated(t)
	file, _ := write(t, w, warehouse.Selection{Source: "cluster-a"}, "csv", "log.csv")
	place := map[string]int{}
	for i, s := range readCSV(t, open(t, file)) {
		words := strings.Split(s.line, " ")
		place[words[4]+words[2]] = i + 1
	}
	var followed int
	for _, e := range w.truths["cluster-a"].Elements {
		begun := place[fmt.Sprint(e.Key, "start")]
		if begun == 0 {
			continue
		}
		for _, before := range e.Follows {
			ended := max(place[fmt.Sprint(before.Key, "complete")], place[fmt.Sprint(before.Key, "ate_abort")])
			if before.Type == "MULTI_INSTANCE_BODY" {
				continue
			}
			if followed++; ended == 0 || ended > begun {
				t.Errorf("%s %d begins as event %d, %s %d before it ends as event %d", e.ID, e.Key, begun, before.ID, before.Key, ended)
			}
		}
		if scope := place[fmt.Sprint(e.FlowScope, "start")]; scope > begun {
			t.Errorf("%s %d begins before what it is in", e.ID, e.Key)
		}
		if scope := place[fmt.Sprint(e.FlowScope, "complete")]; scope > 0 && scope < place[fmt.Sprint(e.Key, "complete")] {
			t.Errorf("%s %d ends after what it is in", e.ID, e.Key)
		}
	}
	if followed < 1000 {
		t.Errorf("only %d elements were compared", followed)
	}
}

// TestAnInterruptedExportGoesOn ends an export in the middle: the file is whole,
// and another one from there has the rest.
func TestAnInterruptedExportGoesOn(t *testing.T) {
	w := simulated(t)
	for _, format := range []string{"xes", "parquet", "ocel"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "log")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cfg := export.Config{Format: format, File: file, Progress: func(done, total uint64) {
				if done < total {
					cancel()
				}
			}}
			first, err := export.Run(ctx, w.db, cfg)
			all := uint64(len(w.cases(warehouse.Selection{})))
			if err == nil || first.Instances == 0 || first.Instances >= all || first.Next.IsZero() {
				t.Fatalf("an export that was interrupted says %v, %+v of %d instances", err, first, all)
			}
			second, rest := write(t, w, warehouse.Selection{From: first.Next}, format, "log")
			if first.Instances+rest.Instances != all {
				t.Errorf("%d instances and %d of %d", first.Instances, rest.Instances, all)
			}
			if format == "ocel" {
				var one, other map[string]any
				if err := json.NewDecoder(open(t, file)).Decode(&one); err != nil {
					t.Error(err)
				}
				if err := json.NewDecoder(open(t, second)).Decode(&other); err != nil {
					t.Error(err)
				}
				return
			}
			want := w.steps(warehouse.Selection{})
			slices.Sort(want)
			got := lines(append(readers[format](t, open(t, file)), readers[format](t, open(t, second))...))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-truth +both logs:\n%s", diff)
			}
		})
	}
}

// TestBadOutputIsRefused has an error that names the file, and leaves nothing.
func TestBadOutputIsRefused(t *testing.T) {
	t.Parallel()
	w := simulated(t)
	dir := t.TempDir()
	there := filepath.Join(dir, "there.xes")
	if err := os.WriteFile(there, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, format, file, want string }{
		{"a file that is there", "xes", there, "there.xes is there"},
		{"Parquet that is compressed twice", "parquet", filepath.Join(dir, "a.parquet.gz"), "compressed inside"},
		{"CSV in a database", "csv", filepath.Join(dir, "a.sqlite"), "a.sqlite would be a database"},
		{"a compressed database", "ocel", filepath.Join(dir, "a.sqlite.gz"), "cannot be compressed"},
		{"no such folder", "csv", filepath.Join(dir, "no", "a.csv"), "no such file"},
		{"no such format", "xml", filepath.Join(dir, "a.xml"), "xes, ocel, parquet, csv, ndjson"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := export.Run(t.Context(), w.db, export.Config{Format: c.format, File: c.file})
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

// TestStandardOutput writes to it.
func TestStandardOutput(t *testing.T) {
	t.Parallel()
	w := simulated(t)
	var out bytes.Buffer
	s := warehouse.Selection{Process: "sync"}
	if _, err := export.Run(t.Context(), w.db, export.Config{Selection: s, Format: "ndjson", File: "-", Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	want := w.steps(s)
	slices.Sort(want)
	if diff := cmp.Diff(want, lines(readNDJSON(t, &out))); diff != "" {
		t.Errorf("-truth +log:\n%s", diff)
	}
}

func readCSV(t *testing.T, r io.Reader) (all []step) {
	t.Helper()
	rows, err := csv.NewReader(r).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
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
	for d := json.NewDecoder(r); ; {
		var row map[string]any
		err := d.Decode(&row)
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		of := map[string]string{}
		for name, value := range row {
			of[name] = fmt.Sprint(value)
		}
		all = append(all, read(t, of))
	}
}

func readParquet(t *testing.T, r io.Reader) (all []step) {
	t.Helper()
	content, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Case       string    `parquet:"case:concept:name"`
		Activity   string    `parquet:"concept:name"`
		Transition string    `parquet:"lifecycle:transition"`
		At         time.Time `parquet:"time:timestamp,timestamp(millisecond)"`
		Resource   string    `parquet:"org:resource"`
		Instance   string    `parquet:"concept:instance"`
		Type       string    `parquet:"bpmn:type"`
	}
	rows, err := parquet.Read[row](bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		all = append(all, step{r.Case, r.At, line(r.Case, r.Activity, r.Transition, r.At.UnixMilli(), r.Instance, r.Type, r.Resource)})
	}
	return all
}

// read reads an event with the names of columns.
func read(t *testing.T, of map[string]string) step {
	t.Helper()
	at, err := time.Parse(time.RFC3339, of["time:timestamp"])
	if err != nil {
		t.Fatal(err)
	}
	return step{of["case:concept:name"], at, line(of["case:concept:name"], of["concept:name"], of["lifecycle:transition"], at.UnixMilli(),
		of["concept:instance"], of["bpmn:type"], of["org:resource"])}
}

// xesAttribute is an attribute of any type.
type xesAttribute struct {
	XMLName xml.Name
	Key     string `xml:"key,attr"`
	Value   string `xml:"value,attr"`
}

func readXES(t *testing.T, r io.Reader) (all []step) {
	t.Helper()
	content, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	checkXES(t, content)
	var log struct {
		Traces []struct {
			Attributes []xesAttribute `xml:",any"`
			Events     []struct {
				Attributes []xesAttribute `xml:",any"`
			} `xml:"event"`
		} `xml:"trace"`
	}
	if err := xml.Unmarshal(content, &log); err != nil {
		t.Fatal(err)
	}
	for _, trace := range log.Traces {
		of := map[string]string{}
		for _, a := range trace.Attributes {
			of["case:"+a.Key] = a.Value
		}
		for _, e := range trace.Events {
			for _, name := range []string{"org:resource"} {
				delete(of, name)
			}
			for _, a := range e.Attributes {
				of[a.Key] = a.Value
			}
			of["bpmn:type"] = of["bpmnElementType"]
			all = append(all, read(t, of))
		}
	}
	return all
}
