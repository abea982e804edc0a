package dedup_test

import (
	"testing"
	"time"

	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/ingest/dedup"
	"sluice/pkg/record"
)

// TestEqualHashesOfOtherRecords: half a hash identifies a record only together with the row's
// other columns.
func TestEqualHashesOfOtherRecords(t *testing.T) {
	c := new(record.Columns)
	m := flow.Message{Seq: 1, Source: "a", Received: time.Now(), Body: []byte(`[{"id":"job-7","key":4,"valueType":"JOB","intent":"CREATED"}]`)}
	fatal.If(t, c.Append(&m))
	stored := flow.Identity{
		Source: "a", Content: string(c.Identity.Value(0)), OwnID: "job-7", Key: 4, ValueType: "JOB", Intent: "CREATED",
	}
	for name, change := range map[string]func(*flow.Identity){
		"the same":       func(*flow.Identity) {},
		"another source": func(k *flow.Identity) { k.Source = "b" },
		"another id":     func(k *flow.Identity) { k.OwnID = "job-8" },
		"another time":   func(k *flow.Identity) { k.TS = 1 },
		"another key":    func(k *flow.Identity) { k.Key = 5 },
		"another intent": func(k *flow.Identity) { k.Intent = "COMPLETED" },
		"another hash":   func(k *flow.Identity) { k.Content = "12345678" },
	} {
		k := stored
		change(&k)
		same := dedup.NewSame(c)
		same.Stored(&k)
		if got, want := same.Add(0), name == "the same"; got != want {
			t.Errorf("%s: same is %v, want %v", name, got, want)
		}
	}
}
