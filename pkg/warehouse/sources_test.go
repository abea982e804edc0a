package warehouse_test

import (
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

func TestSourcesHaveThePositionOfEachEngine(t *testing.T) {
	db := open(t)
	records := []string{
		`{"partitionId":1,"position":7,"timestamp":1763700000000}`,
		`{"partitionId":1,"position":9,"timestamp":1763700000001}`,
		`{"partitionId":2,"position":3,"timestamp":1763613600000}`,
		`{"id":"job-7","timestamp":1763700000005}`,
		`{"id":"job-7"}`,
		`{"position":-1,"partitionId":1,"key":-1}`,
	}
	b := block(t, 3, 11, records...)
	for range 2 {
		fatal.If(t, db.Insert(t.Context(), b))
	}
	b = block(t, 3, 12, `{"partitionId":1,"position":8,"timestamp":1763700000009}`)
	fatal.If(t, db.Insert(t.Context(), b))
	got := query(t, db, `SELECT partition_id, day, lane, first_position, last_position, toUnixTimestamp64Milli(first_ts), toUnixTimestamp64Milli(last_ts), last_seq, rows
		FROM {db}.sources FINAL ORDER BY ALL FORMAT CSV`)
	want := `0,"1970-01-01",3,\N,\N,\N,\N,11,2
0,"2025-11-21",3,\N,\N,1763700000005,1763700000005,11,1
1,"2025-11-21",3,7,9,1763700000000,1763700000009,12,3
2,"2025-11-20",3,3,3,1763613600000,1763613600000,11,1`
	expect.Equal(t, "flow.sources", want, got)
	if got, want := query(t, db, "SELECT partition_id, records, last_position, lanes FROM {db}.v_sources ORDER BY partition_id FORMAT CSV"), "0,3,\\N,\"[3]\"\n1,3,9,\"[3]\"\n2,1,3,\"[3]\""; got != want {
		t.Errorf("v_sources: got %s, want %s", got, want)
	}
}
