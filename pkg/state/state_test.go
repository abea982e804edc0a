package state_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice/pkg/change"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
)

// history publishes a few changes of every kind, and returns the resulting documents.
func history(t *testing.T, w *world) (messages []flow.Message, want map[string]string) {
	t.Helper()
	w.publish(
		patch(t, "ann", `{"name":"Ann","tableFieldsSetting":{"a":1}}`),
		put(t, "orders", "total", `{"name":"Total","size":9007199254740993}`),
		patch(t, "bob", `{"name":"Bob"}`),
		patch(t, "ann", `{"company":"<C>","tableFieldsSetting":{"b":1.50}}`),
		remove(t, "orders", "gone", 0),
		put(t, "orders", "back", `{}`),
	)
	back := w.messages()[5].Seq
	w.publish(
		remove(t, "orders", "back", back),
		patch(t, "bob", `{"name":null,"remarks":"r"}`),
		put(t, "orders", "back", `{"checked":true}`),
	)
	return w.messages(), map[string]string{
		"ann":          `{"company":"<C>","name":"Ann","tableFieldsSetting":{"a":1,"b":1.50}}`,
		"bob":          `{"remarks":"r"}`,
		"orders/total": `{"id":"total","name":"Total","size":9007199254740993,"tableId":"orders"}`,
		"orders/gone":  "†",
		"orders/back":  `{"checked":true,"id":"back","tableId":"orders"}`,
	}
}

func audited(messages []flow.Message) (rows []change.Audit) {
	for _, m := range messages {
		c, err := change.Decode(m.Body)
		if err != nil {
			panic(err)
		}
		rows = append(rows, c.Audit(m.Seq))
	}
	return rows
}

// TestChangesAreAppliedInOrder: every division of the history into blocks gives the same entries.
func TestChangesAreAppliedInOrder(t *testing.T) {
	for _, size := range []int{1, 2, 4, 100} {
		t.Run(fmt.Sprintf("in blocks of %d", size), func(t *testing.T) {
			w := open(t)
			messages, want := history(t, w)
			for i := 0; i < len(messages); i += size {
				w.apply(messages[i:min(i+size, len(messages))]...)
			}
			w.wantDocuments(want)
			if size == 100 && w.bucket.writes != len(want) {
				t.Errorf("%d writes, want one for each of %d targets", w.bucket.writes, len(want))
			}
			expect.Equal(t, "audit", audited(messages), w.audits.all())
			e, err := w.store.Entry(t.Context(), change.Target{User: "bob"})
			expect.Not(t, err != nil || e.Seq != messages[7].Seq || e.UpdatedBy != "bob" || e.UpdatedAt.IsZero(), "entry is %+v, %v", e, err)
		})
	}
}

// TestReplaysChangeNothing: repeats are not written, in any chunks, from any process, and after a server restart.
func TestReplaysChangeNothing(t *testing.T) {
	w := open(t)
	messages, want := history(t, w)
	w.apply(messages...)
	entries, rows := w.revisions(), w.audits.all()

	w.server.Restart()
	again := openOn(t, w.server)
	again.audits = w.audits
	for from := range messages {
		again.apply(messages[from:]...)
		again.apply(messages[from])
	}
	again.wantDocuments(want)
	if diff := cmp.Diff(entries, again.revisions()); diff != "" || again.bucket.writes != 0 {
		t.Errorf("%d writes (-before +after):\n%s", again.bucket.writes, diff)
	}
	w.audits.rows = map[string][]change.Audit{}
	w.apply(messages...)
	if diff := cmp.Diff(rows, w.audits.all()); diff != "" {
		t.Errorf("written down again (-before +after):\n%s", diff)
	}
}

// Each step fails in both ways: not done, and done but unanswered.
func TestAnyFailureIsMadeGoodByTryingAgain(t *testing.T) {
	for _, tc := range []struct {
		name          string
		write, insert faults
	}{
		{"the first write fails, not stored", faults{before}, nil},
		{"the first write fails, but stored", faults{after}, nil},
		{"later writes fail either way", faults{works, after, before, works, after, after, before}, nil},
		{"writing down fails, not stored", nil, faults{before, before}},
		{"writing down fails, but stored", nil, faults{after, after}},
		{"everything fails", faults{before, after, before, after}, faults{after, before, after}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := open(t)
			messages, want := history(t, w)
			w.bucket.fail, w.audits.fail = tc.write, tc.insert
			w.apply(messages[:4]...)
			w.apply(messages[4:]...)
			w.wantDocuments(want)
			expect.Equal(t, "audit", audited(messages), w.audits.all())
			expect.Not(t, len(w.bucket.fail)+len(w.audits.fail) > 0, "not every fault was met")
		})
	}
}

// A superseded owner applies the same history, or an older part of it, concurrently.
func TestTwoOwnersAtOnceDoNoHarm(t *testing.T) {
	w := open(t)
	messages, want := history(t, w)
	other := openOn(t, w.server)
	other.audits = w.audits
	var owners sync.WaitGroup
	for _, owner := range []*world{w, other, w, other} {
		owners.Go(func() {
			for _, m := range messages {
				owner.apply(m)
			}
		})
	}
	owners.Wait()
	w.wantDocuments(want)
	expect.Equal(t, "audit", audited(messages), w.audits.all())
}

// The claim is asked for when an entry has been read: without it nothing is written.
func TestNothingIsAppliedWithoutAClaim(t *testing.T) {
	w := open(t)
	w.publish(patch(t, "ann", `{"a":1}`), patch(t, "bob", `{"b":2}`))
	lost := errors.New("lost")
	if err := w.Apply(t.Context(), w.messages(), func(context.Context) error { return lost }); !errors.Is(err, lost) {
		t.Errorf("got %v", err)
	}
	w.wantDocuments(map[string]string{})
	w.apply(w.messages()...)
	if err := w.Apply(t.Context(), w.messages(), func(context.Context) error { return lost }); err != nil {
		t.Errorf("what is applied already: %v", err)
	}
}

// A write that conflicts with another writer's is retried on top of it.
func TestAConflictIsNoFailure(t *testing.T) {
	for name, earlier := range map[string]int{"the first entry": 0, "a later one": 1} {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			w.publish(patch(t, "ann", `{"a":1}`), patch(t, "ann", `{"b":2}`), patch(t, "ann", `{"c":3}`))
			messages := w.messages()
			w.apply(messages[:earlier]...)
			other := openOn(t, w.server)
			w.bucket.first = func() { other.apply(messages[:2]...) }
			fatal.If(t, w.Apply(t.Context(), messages, always))
			w.wantDocuments(map[string]string{"ann": `{"a":1,"b":2,"c":3}`})
			metrics := `
# HELP sluice_state_conflicts_total Writes of an entry that were retried after a conflict with another writer.
# TYPE sluice_state_conflicts_total counter
sluice_state_conflicts_total 1
# HELP sluice_state_changes_skipped_total Changes skipped because they were already applied.
# TYPE sluice_state_changes_skipped_total counter
sluice_state_changes_skipped_total 2
`
			expect.NoError(t, testutil.GatherAndCompare(w.reg, strings.NewReader(metrics), "sluice_state_conflicts_total", "sluice_state_changes_skipped_total"))
		})
	}
}

// Another stream counts from 1 again: its changes are not mistaken for those recorded under the
// same sequences.
func TestTokensDistinguishStreams(t *testing.T) {
	w, other := open(t), open(t)
	w.publish(patch(t, "ann", `{"a":1}`))
	other.publish(patch(t, "ann", `{"a":1}`))
	other.audits = w.audits
	w.apply(w.messages()...)
	other.apply(other.messages()...)
	expect.Equal(t, "inserts", 2, len(w.audits.rows))
}

// A message that can never be applied is refused as poison, and the changes around it are applied.
func TestAnInapplicableChangeIsDeadLettered(t *testing.T) {
	good := func(w *world) []flow.Message {
		w.publish(patch(w.t, "ann", `{"name":"Ann"}`), patch(w.t, "ann", `{"a":"b"}`), patch(w.t, "ann", `{"remarks":"r"}`))
		return w.messages()
	}
	for _, tc := range []struct {
		name string
		bad  func(t *testing.T, w *world, m *flow.Message) // corrupts the second of three
		code string

		accepted bool // it is a change, and is recorded
	}{
		{"not a change", func(_ *testing.T, _ *world, m *flow.Message) { m.Body = []byte(`[{"id":"1-1"}]`) }, "not_a_change", false},
		{"a change under another name", func(_ *testing.T, _ *world, m *flow.Message) { m.Topic = "flow.0.change.user.Ym9i" }, "wrong_topic", false},
		{"a document that would be too large", func(t *testing.T, w *world, m *flow.Message) {
			body, err := patch(t, "ann", `{"b":"`+strings.Repeat("x", change.MaxBody-10)+`"}`).Encode()
			fatal.If(t, err)
			m.Body = body
		}, "document_too_large", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := open(t)
			messages := good(w)
			tc.bad(t, w, &messages[1])
			var refused *flow.StoreError
			var bad *change.BadChangeError
			if err := w.Apply(t.Context(), messages, always); !errors.As(err, &refused) || refused.Class != flow.ClassPoison || !errors.As(err, &bad) || bad.Code != tc.code {
				t.Errorf("got %v, want poison for %s", err, tc.code)
			}
			expect.Equal(t, "dead-lettered", []uint64{2}, w.apply(messages...))
			w.wantDocuments(map[string]string{"ann": `{"name":"Ann","remarks":"r"}`})
			written := []flow.Message{messages[0], messages[2]}
			if tc.accepted {
				written = messages
			}
			expect.Equal(t, "audit", audited(written), w.audits.all())
		})
	}
}

// TestAChangeOfADamagedEntryIsDeadLettered: it blocks no other change, and the entry is left to an
// operator.
func TestAChangeOfADamagedEntryIsDeadLettered(t *testing.T) {
	for _, value := range []string{``, `{`, `{"target":{"user":"bob"}}`, `{"target":{"user":"ann"},"doc":[],"seq":0}`} {
		w := open(t)
		w.publish(patch(t, "ann", `{"name":"Ann"}`))
		w.publish(patch(t, "bob", `{"name":"Bob"}`))
		key := change.Target{User: "ann"}.Key()
		if _, err := w.bucket.KeyValue.Put(t.Context(), key, []byte(value)); err != nil {
			t.Fatal(err)
		}
		expect.Equal(t, fmt.Sprintf("%q: dead-lettered", value), []uint64{1}, w.apply(w.messages()...))
		if e, err := w.store.Entry(t.Context(), change.Target{User: "bob"}); err != nil || e.Seq != 2 {
			t.Errorf("%q: the other one is %+v, %v", value, e, err)
		}
		if _, err := w.store.Incarnation(t.Context()); err != nil {
			t.Errorf("%q: no life can begin: %v", value, err)
		}
		if kv, err := w.bucket.Get(t.Context(), key); err != nil || string(kv.Value()) != value {
			t.Errorf("%q was replaced: %v", value, err)
		}
	}
}

// A key deleted by an operator counts as absent.
func TestADeletedKeyIsWrittenAgain(t *testing.T) {
	w := open(t)
	w.publish(patch(t, "ann", `{"name":"Ann"}`))
	messages := w.messages()
	w.apply(messages...)
	fatal.If(t, w.bucket.Delete(t.Context(), change.Target{User: "ann"}.Key(), 0))
	if e, err := w.store.Entry(t.Context(), change.Target{User: "ann"}); err != nil || e.Seq != 0 {
		t.Errorf("entry is %+v, %v", e, err)
	}
	w.apply(messages...)
	w.wantDocuments(map[string]string{"ann": `{"name":"Ann"}`})
}

func TestEntries(t *testing.T) {
	w := open(t)
	w.wantDocuments(map[string]string{})
	messages, _ := history(t, w)
	w.apply(messages...)
	for filter, want := range map[string]int{">": 5, "user.>": 2, "field.>": 3, change.Target{User: "bob"}.Key(): 1, "user.nobody": 0} {
		n := 0
		for _, err := range w.store.Entries(t.Context(), filter) {
			fatal.If(t, err)
			n++
		}
		expect.Not(t, n != want, "%s: %d entries, want %d", filter, n, want)
	}
	for range w.store.Entries(t.Context(), ">") {
		break // a caller may stop early
	}
}

func TestWithoutNATSTheStateIsUnavailable(t *testing.T) {
	w := open(t)
	w.publish(patch(t, "ann", `{"name":"Ann"}`))
	messages := w.messages()
	w.server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := w.store.Entry(ctx, change.Target{User: "ann"})
	var retry *flow.RetryError
	if !errors.Is(err, flow.ErrUnavailable) || !errors.As(err, &retry) || time.Since(start) > 2*time.Second {
		t.Errorf("got %v after %v", err, time.Since(start))
	}
	if err := w.Apply(ctx, messages, always); !errors.Is(err, flow.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	w.server.Restart()
	w.apply(messages...)
	w.wantDocuments(map[string]string{"ann": `{"name":"Ann"}`})
}

// TestAConditionalChangeIsAppliedToItsStateAlone: in any cut of the messages, and when replayed
// from the beginning in a later incarnation.
func TestAConditionalChangeIsAppliedToItsStateAlone(t *testing.T) {
	w := open(t)
	ann := change.Target{User: "ann"}
	patch := func(body string, base ...*change.Change) *change.Change {
		c, _, err := change.NewUserPatch(t.Context(), "ann", false, []byte(body), &change.Secrets{Concurrency: 1})
		fatal.If(t, err)
		for _, b := range base {
			c.Base = &b.ID
		}
		return c
	}
	first := patch(`{"name":"a","company":"first"}`)
	second := patch(`{"name":"b"}`, first)
	late := patch(`{"name":"c","company":"late"}`, first) // conditional on the previous state
	third := patch(`{"mobile":"3"}`, second)
	w.publish(first, second, late, third)
	messages := w.messages()
	check := func(when string, ignored int) {
		t.Helper()
		e, err := w.store.Entry(t.Context(), ann)
		fatal.If(t, err)
		if shown, _ := e.User("ann"); string(shown) != `{"company":"first","id":"ann","mobile":"3","name":"b"}` || e.ID != third.ID {
			t.Errorf("%s: %s, made by %s", when, shown, e.ID)
		}
		for c, want := range map[*change.Change]bool{second: false, late: true, third: false} {
			if got, known := e.Outcome(c.ID); !known || got != want {
				t.Errorf("%s: %s is ignored %v, known %v, want %v", when, c.Body, got, known, want)
			}
		}
		if got := testutil.ToFloat64(w.Ignored()); int(got) != ignored {
			t.Errorf("%s: %v changes were counted as ignored, want %d", when, got, ignored)
		}
	}
	w.apply(messages...)
	check("applied at once", 1)
	for i := range messages {
		w.apply(messages[i:]...)
	}
	check("applied again", 1)
	for i := range messages {
		messages[i].Incarnation++
		w.apply(messages[i])
	}
	check("applied in a later incarnation, one by one", 2)
}
