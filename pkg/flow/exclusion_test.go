package flow_test

import (
	"testing"

	"sluice/pkg/flow"
)

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"JOB", "JOB", true}, {"JOB", "JOBS", false}, {"JOB", "job", false}, {"", "", true}, {"", "a", false},
		{"*", "", true}, {"*", "anything", true}, {"tmp_*", "tmp_1", true}, {"tmp_*", "a_tmp_1", false}, {"*_tmp", "a_tmp", true}, {"*_tmp", "a_tmp1", false},
		{"a*b*c", "axxbyyc", true}, {"a*b*c", "acb", false}, {"a*b*b", "ab", false}, {"a*b*b", "abb", true}, {"*a*", "xay", true}, {"*a*", "xy", false}, {"a**b", "ab", true},
		{"ä*", "äb", true},
	} {
		if got := flow.Glob(c.pattern, []byte(c.text)); got != c.want {
			t.Errorf("Glob(%q, %q) = %v", c.pattern, c.text, got)
		}
	}
}
