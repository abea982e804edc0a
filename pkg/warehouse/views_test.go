package warehouse_test

import (
	"regexp"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

var (
	plain     = regexp.MustCompile(`^(Array|Nullable)?\(?(String|Float64|U?Int\d+|Date|DateTime64\(3, 'UTC'\))\)?$`)
	instances = regexp.MustCompile(`^(\w+_)?process_instance_key$`)
	otherKeys = regexp.MustCompile(`^(key|\w+_key)$`)
	texts     = regexp.MustCompile(`^(business|correlation)_key$`) // set by users
)

// TestViewsShowPlainTypes: tools without SimpleAggregateFunction can read every column, each has a
// comment, and keys of instances join without conversion, like all other keys.
func TestViewsShowPlainTypes(t *testing.T) {
	t.Parallel()
	db := open(t)
	columns := strings.Split(query(t, db, `SELECT table, name, type, comment FROM system.columns WHERE database = '{db}' AND table LIKE 'v\\_%' ORDER BY table, position`), "\n")
	fatal.When(t, len(columns) < 200, "only %d columns", len(columns))
	for _, line := range columns {
		c := strings.SplitN(line, "\t", 4)
		kind := strings.ReplaceAll(c[2], `\'`, `'`)
		if !plain.MatchString(kind) || len(c) < 4 || c[3] == "" {
			t.Errorf("%s.%s is %s, with the comment %q", c[0], c[1], kind, c[3:])
		}
		switch {
		case instances.MatchString(c[1]):
			if kind != "String" {
				t.Errorf("%s.%s is %s, keys of instances are String", c[0], c[1], kind)
			}
		case otherKeys.MatchString(c[1]) && !texts.MatchString(c[1]):
			if kind != "Int64" && kind != "Nullable(Int64)" {
				t.Errorf("%s.%s is %s, other keys are Int64", c[0], c[1], kind)
			}
		}
	}
	joined := query(t, db, "SELECT count() FROM {db}.v_process_instances AS called INNER JOIN {db}.v_process_instances AS caller ON caller.source = called.source AND caller.process_instance_key = called.parent_process_instance_key")
	expect.Not(t, joined != "0", "an empty database has %s calls", joined)
}
