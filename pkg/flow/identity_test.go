package flow_test

import (
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/flow"
)

func TestAReplayNamesThePlaceOfItsRecords(t *testing.T) {
	for _, tt := range []struct{ name, origin, id, want string }{
		{"a record", "0.17.9.2", "", "0.17.9.2"},
		{"a record of a request", "0.17.9.2", "4bf92f3577b34da6a3ce929d0e0e4736", "0.17.9.2"},
		{"a record that was replayed before", "0.18.4.0", flow.ReplayID("0.17.9.2", ""), "0.17.9.2"},
		{"and before that", "0.19.1.0", flow.ReplayID("0.18.4.0", flow.ReplayID("0.17.9.2", "")), "0.17.9.2"},
		{"a whole message", "0.17.9.-1", "", "0.17.9.-1"},
		{"a record of a whole message that was replayed", "0.18.4.5", flow.ReplayID("0.17.9.-1", ""), "0.18.4.5"},
		{"a letter of no lane", "-1.17.9.0", "", ""},
	} {
		id := flow.ReplayID(tt.origin, tt.id)
		if got := flow.ReplayOf(id); got != tt.want {
			t.Errorf("%s: %q names %q, want %q", tt.name, id, got, tt.want)
		}
		expect.Not(t, id == tt.id, "%s: the id is that of the request before", tt.name)
	}
	expect.Equal(t, "the id of a client's request names", "", flow.ReplayOf("4bf92f3577b34da6a3ce929d0e0e4736"))
}
