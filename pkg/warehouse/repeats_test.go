package warehouse_test

import (
	"testing"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/load"
)

// TestRecordsSeenTwiceChangeNoFold stores everything again under other tokens,
// as when an engine sends its records again.
func TestRecordsSeenTwiceChangeNoFold(t *testing.T) {
	t.Parallel()
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
			(SELECT groupBitXor(sipHash64(*)) FROM {db}.v_variables),
			(SELECT count() FROM {db}.v_records)`)
	}
	var first string
	for seq := range uint64(3) {
		m := flow.Message{Seq: seq + 1, Topic: "flow.0.record", Received: received, Body: body}
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
