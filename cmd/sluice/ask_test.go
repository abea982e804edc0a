package main

import (
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"sluice/pkg/fatal"
)

// TestWhatAskIsGiven parses command lines into parameters of a question. Texts may contain commas.
func TestWhatAskIsGiven(t *testing.T) {
	at := func(m time.Time) string { return m.UTC().Format("2006-01-02T15:04") }
	for args, want := range map[string]map[string]string{
		"durations": {},
		"durations --process order --from 7d --to 90m":     {"process": "order", "from": at(time.Now().Add(-7 * 24 * time.Hour)), "to": at(time.Now().Add(-90 * time.Minute))},
		"durations --from 2026-01-31T12:00:00+02:00":       {"from": "2026-01-31T10:00"},
		"durations --to 2026-01-31":                        {"to": "2026-01-31T00:00"},
		"error_text --set words=['a','b'] --set limit=3":   {"words": "['a','b']", "limit": "3"},
		"funnel --set first=a=b --tenant= --source engine": {"first": "a=b", "tenant": "", "source": "engine"},
	} {
		got, err := given(t, args)
		for _, name := range []string{"from", "to"} {
			if _, is := got[name]; is {
				got[name] = got[name][:len("2006-01-02T15:04")]
			}
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", args, err, diff)
		}
	}
	for args, want := range map[string]string{
		"durations --from 1d --to 2d":           "is not before --to",
		"durations --set first":                 "--set first: give each parameter once, as name=value",
		"durations --process a --set process=b": "--set process=b: give each parameter once",
		"durations --from yesterday":            "use an age such as 90m or 7d, a day such as 2026-01-31, or a time such as 2026-01-31T12:00:00Z",
		"durations --from -1d":                  "-1d",
		"durations --from 99999d":               "use an age such as 90m or 7d",
	} {
		if got, err := given(t, args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v; want %q", args, got, err, want)
		}
	}
}

func given(t *testing.T, args string) (map[string]string, error) {
	t.Helper()
	var c askCmd
	parser, err := kong.New(&c)
	fatal.If(t, err)
	if _, err := parser.Parse(strings.Fields(args)); err != nil {
		return nil, err
	}
	return c.values(t.Context())
}
