package record_test

import (
	"fmt"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// TestIdentityDependsOnTheRecordAlone: the same record has the same key at any time, and at apis whose clocks differ.
func TestIdentityDependsOnTheRecordAlone(t *testing.T) {
	const day = 24 * 60 * 60 * 1000
	sent := time.UnixMilli(1763704800000)
	for name, ms := range map[string]int64{
		"a week ahead":                 sent.UnixMilli() + 7*day,
		"a week and some seconds":      sent.UnixMilli() + 7*day + 5000,
		"years ahead":                  sent.UnixMilli() + 2000*day,
		"the last moment of 2099":      4102444799999,
		"the first moment of 2100":     4102444800000,
		"the first moment of 2000":     946684800000,
		"the moment before":            946684799999,
		"microseconds, far beyond all": 1763701200000000,
	} {
		t.Run(name, func(t *testing.T) {
			raw := fmt.Sprintf(`[{"id":"own","partitionId":3,"position":12,"key":7,"timestamp":%d}]`, ms)
			wantKind, wantTS := flow.ByPosition, ms
			if ms < 946684800000 || ms >= 4102444800000 {
				wantKind, wantTS = flow.ByContent, 0
			}
			var first []map[string]any
			for _, received := range []time.Time{sent, time.UnixMilli(0), sent.Add(-8 * 24 * time.Hour), time.UnixMilli(ms), sent.AddDate(200, 0, 0)} {
				m := message(raw)
				m.Received = received
				var c record.Columns
				appended(t, &c, m)
				if c.Kind[0] != wantKind || c.TS[0] != wantTS {
					t.Errorf("received %v: kind %d at %d, want kind %d at %d", received, c.Kind[0], c.TS[0], wantKind, wantTS)
				}
				got := rows(&c)
				delete(got[0], "from")
				if first == nil {
					first = got
				}
				expect.Equal(t, fmt.Sprintf("received %v: another row (-first +this)", received), first, got)
			}
		})
	}
}
