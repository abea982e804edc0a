package warehouse_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"sluice/pkg/load"
	"sluice/pkg/record"
)

// TestTheQueriesOfAnalysts runs queries.sql on what an engine at work sends.
func TestTheQueriesOfAnalysts(t *testing.T) {
	db := open(t)
	g, err := load.NewGenerator(load.GeneratorConfig{Seed: 7, Start: time.Now().Add(-30 * time.Minute), Step: time.Millisecond, Instances: 200})
	if err != nil {
		t.Fatal(err)
	}
	for seq := range uint64(20) {
		body, _, _ := g.AppendBatch(nil, 1000)
		m := record.Message{Seq: seq + 1, Topic: "flow.0.record", Received: time.Now(), Body: body}
		b := block(t, 0, seq+1)
		if err := b.Columns.Append(&m); err != nil {
			t.Fatal(err)
		}
		if err := db.Insert(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile("queries.sql")
	if err != nil {
		t.Fatal(err)
	}
	queries := regexp.MustCompile(`(?m)^-- name: (\w+)\n(.+);$`).FindAllStringSubmatch(string(text), -1)
	if len(queries) != 16 {
		t.Fatalf("queries.sql has %d queries, want 16", len(queries))
	}
	for _, q := range queries {
		t.Run(q[1], func(t *testing.T) {
			if query(t, db, strings.ReplaceAll(q[2], "flow.", "{db}.")) == "" {
				t.Error("no rows")
			}
		})
	}

	got := query(t, db, `SELECT count(), uniqExact(id), groupBitXor(sipHash64(id)) FROM {db}.records`)
	if folded := query(t, db, `SELECT sum(records), (SELECT uniqExact(id) FROM {db}.v_records), (SELECT groupBitXor(sipHash64(id)) FROM {db}.v_records) FROM {db}.counts_1m`); got != folded {
		t.Errorf("records, ids, hash: the table has %s, counters and view %s", got, folded)
	}
}

// TestRecordsSeenTwiceChangeNoFold stores everything again under other tokens,
// as when an engine sends its records again.
func TestRecordsSeenTwiceChangeNoFold(t *testing.T) {
	db := open(t)
	g, err := load.NewGenerator(load.GeneratorConfig{Seed: 8, Start: received.Add(-time.Hour), Step: time.Millisecond, Instances: 100})
	if err != nil {
		t.Fatal(err)
	}
	body, _, _ := g.AppendBatch(nil, 5000)
	folds := func() string {
		return query(t, db, `SELECT
			(SELECT groupBitXor(sipHash64(*)) FROM (SELECT * EXCEPT(incident_keys, resolved_incident_keys) FROM {db}.v_process_instances)),
			(SELECT groupBitXor(sipHash64(*)) FROM {db}.v_element_instances),
			(SELECT groupBitXor(sipHash64(*)) FROM {db}.v_jobs),
			(SELECT groupBitXor(sipHash64(*)) FROM {db}.v_incidents),
			(SELECT count() FROM {db}.v_records)`)
	}
	var first string
	for seq := range uint64(3) {
		m := record.Message{Seq: seq + 1, Topic: "flow.0.record", Received: received, Body: body}
		b := block(t, 0, seq+1)
		if err := b.Columns.Append(&m); err != nil {
			t.Fatal(err)
		}
		if err := db.Insert(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = folds()
		}
	}
	if again := folds(); again != first {
		t.Errorf("folds changed:\n%s\n%s", first, again)
	}
}
