package record_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"

	"sluice/pkg/expect"
	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// TestForgets compares the skipped records of a message.
func TestForgets(t *testing.T) {
	const before = 1_763_701_200_000
	forgets := record.NewForgets([]flow.Forget{
		{Before: before, Subjects: []flow.ForgetSubject{{Source: "a", Keys: []string{"2251", "order-7"}}}},
		{Before: before - 1000, Subjects: []flow.ForgetSubject{{Source: "a", Keys: []string{"9"}}, {Source: "b", Keys: []string{"77"}}}},
	})
	of := func(at int64, instance, more string) string {
		return fmt.Sprintf(`{"timestamp":%d,"value":{"processInstanceKey":%s%s}}`, at, instance, more)
	}
	for name, c := range map[string]struct {
		source, record string
		want           bool
	}{
		"of the instance":                    {"a", of(before, "2251", ""), true},
		"of the instance, later":             {"a", of(before+1, "2251", ""), false},
		"without a timestamp":                {"a", `{"value":{"processInstanceKey":2251}}`, true},
		"of another source":                  {"b", of(before, "2251", ""), false},
		"of another instance that names it":  {"a", of(before, "5", `,"of":2251`), false},
		"of no instance, names it":           {"a", of(before, "-1", `,"jobs":[{"processInstanceKey":2251}]`), true},
		"of no instance, names it, later":    {"a", of(before+1, "-1", `,"jobs":[{"processInstanceKey":2251}]`), false},
		"of no instance, a longer number":    {"a", of(before, "-1", `,"of":22510`), false},
		"of no instance, its sequence":       {"a", of(before, "-1", `,"sequence" : 2251`), false},
		"of no instance, a key that is text": {"a", of(before, `""`, `,"of":"order-7"`), true},
		"of an instance of another order":    {"a", of(before-1000, "9", ""), true},
		"of one of another order, later":     {"a", of(before-999, "9", ""), false},
	} {
		t.Run(name, func(t *testing.T) {
			m := &flow.Message{Source: c.source, Received: received, Encoding: flow.EncodingS2,
				Body: s2.Encode(nil, []byte(`[{"id":"first"},`+c.record+`,{"id":"last"}]`))}
			var columns record.Columns
			appended(t, &columns, &flow.Message{Source: "a", Body: []byte(`[{"id":"of the message before"}]`)})
			appended(t, &columns, m)
			var want []int
			if c.want {
				want = []int{2}
			}
			expect.Equal(t, "rows", want, forgets.Rows(m, &columns, 1))
		})
	}
	late := &flow.Message{Source: "a", Received: time.UnixMilli(before + 1)}
	early := &flow.Message{Source: "a", Received: time.UnixMilli(before)}
	if raw := []byte(`{"broken":2251`); !forgets.Names(early, 0, raw) || forgets.Names(late, 0, raw) || forgets.Names(early, 0, raw[:12]) {
		t.Error("a record that cannot be decoded is skipped if it names the instance and its request came before")
	}
	packed := *early
	packed.Encoding = flow.EncodingS2
	expect.Not(t, !forgets.Names(&packed, -1, s2.Encode(nil, []byte(`{"broken":2251`))), "a message that cannot be decoded and is compressed names the instance")
	if rows := (record.Forgets{}).Rows(early, new(record.Columns), 0); rows != nil {
		t.Errorf("without orders %v are skipped", rows)
	}
}
