package warehouse_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/warehouse"
)

// TestQuestionsAreAnsweredTruly runs every question with its examples and with other processes,
// tenants and times, and compares the results with the truth.
func TestQuestionsAreAnsweredTruly(t *testing.T) {
	w := simulated(t)
	questions, err := warehouse.Questions()
	fatal.If(t, err)
	truths := truths()
	maps.Copy(truths, truthsOfWaits())
	for _, q := range questions {
		truth, known := truths[q.Name]
		if !known {
			t.Errorf("%s: no truth is defined", q.Name)
			continue
		}
		for _, params := range []map[string]string{
			{"limit": "100000"},
			{"limit": "100000", "process": "survey", "tenant": "acme", "words": "['quota']", "first": "begin", "second": "remind", "name": "note", "value": `"say \"yes\""`},
			{"limit": "100000", "process": "claim", "against": "2025-10-31 22:00:00", "targets": `{"claim":1800,"settle":20,"approve":600}`, "from": "2025-10-31 23:30:00", "to": "2025-11-21 06:00:00", "first": "settle", "second": "approve"},
			{"limit": "100000", "process": "order-eu", "source": "cluster-b", "tree": "0", "now": "2025-11-01 01:30:00", "quiet": "600"},
			{"limit": "100000", "process": "", "from": "2025-11-21T05:20:00Z", "to": "2025-11-21T08:00:00+01:00", "zone": "Asia/Kolkata", "tree": "0", "now": "2025-11-21T07:00:00Z"},
		} {
			t.Run(fmt.Sprint(q.Name, " of ", params["process"]), func(t *testing.T) {
				t.Parallel()
				want := truth(w, read(t, q, params))
				got := w.unnamed(t, strings.Split(w.ask(t, q, params, "TabSeparatedWithNames"), "\n"))
				if q.Name != "timeline" && q.Name != "instance_tree" { // their order is part of the result
					slices.Sort(want)
					slices.Sort(got)
				}
				if len(want) == 0 {
					want = nil
				}
				if inlined := query(t, w.db, q.With(params)); params["tenant"] != "" && strings.Count(inlined+"\n", "\n") != max(len(got), 1) {
					t.Errorf("the statement with its values in it answers %s", inlined)
				}
				expect.Equal(t, fmt.Sprintf("%d lines, %d in truth (-truth +got)", len(got), len(want)), want, got)
			})
		}
	}
	for name := range truths {
		if !slices.ContainsFunc(questions, func(q warehouse.Question) bool { return q.Name == name }) {
			t.Errorf("%s is never asked", name)
		}
	}
}

// unnamed removes the names of processes and elements from a result, after comparing them with the
// deployed BPMN.
func (w *world) unnamed(t *testing.T, answer []string) (rows []string) {
	t.Helper()
	columns := strings.Split(answer[0], "\t")
	for _, row := range answer[1:] {
		var kept []string
		cells := strings.Split(row, "\t")
		of := func(column string) string { return cells[max(slices.Index(columns, column), 0)] }
		for i, column := range columns {
			thing, named := strings.CutSuffix(column, "_name")
			id := map[string]string{"process": "bpmn_process_id"}[thing]
			if id = cmp.Or(id, thing+"_id"); !named || !slices.Contains(columns, id) || columns[0] != "source" {
				kept = append(kept, cells[i])
			} else if got := w.names[of("source")][[2]string{of("bpmn_process_id"), of(id)}]; got != cells[i] {
				t.Errorf("%s of %s is %q, the BPMN has %q", column, row, cells[i], got)
			}
		}
		rows = append(rows, strings.Join(kept, "\t"))
	}
	return rows
}

// read parses the parameters of a question independently.
func read(t *testing.T, q warehouse.Question, params map[string]string) asking {
	t.Helper()
	all := map[string]string{}
	for _, p := range q.Parameters {
		all[p.Name] = p.Example
		if value, given := params[p.Name]; given {
			all[p.Name] = value
		}
	}
	ms := func(name string) int64 {
		if all[name] == "" {
			return 0
		}
		at, err := time.Parse(time.DateTime, all[name])
		if err != nil {
			at, err = time.Parse(time.RFC3339, all[name])
		}
		fatal.If(t, err)
		return at.UnixMilli()
	}
	quiet, _ := strconv.ParseInt(all["quiet"], 10, 64)
	targets := map[string]int64{}
	fatal.If(t, json.Unmarshal([]byte(cmp.Or(all["targets"], "{}")), &targets))
	return asking{
		source: all["source"], process: all["process"], tenant: all["tenant"], first: all["first"], second: all["second"], instance: all["instance"], name: all["name"], value: all["value"], zone: all["zone"], tree: all["tree"],
		from: ms("from"), to: ms("to"), now: ms("now"), quiet: quiet, against: ms("against"), targets: targets, words: strings.Split(strings.Trim(all["words"], "[]'"), "','"),
	}
}
