package endtoend

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats.go"

	"sluice/cmd/internal/forget"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
)

const person = "anna.lindqvist@example.org"

// forget runs sluice forget and returns the receipts. The exit status must be want.
func (s *stack) forget(want int, args ...string) (all []forget.Receipt, out string) {
	s.t.Helper()
	out = s.sluice(want, s.forgetArgs(args...)...)
	for line := range strings.Lines(out) { // log lines may come before
		if strings.HasPrefix(line, `{"id"`) {
			var r forget.Receipt
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				s.t.Fatalf("%v in:\n%s", err, out)
			}
			all = append(all, r)
		}
	}
	return all, out
}

func (s *stack) forgetArgs(args ...string) []string {
	return append([]string{"forget", "--nats", "nats://" + s.nats, "--clickhouse", "clickhouse://default@" + s.clickhouse + "/flow"}, args...)
}

// lifeOf returns the records of an instance with a variable, of every kind of identity.
func lifeOf(key, position int, value string, now time.Time) (positioned, others []string) {
	of := func(n int, valueType, intent, value string) string {
		return fmt.Sprintf(`{"partitionId":1,"position":%d,"key":%d,"recordType":"EVENT","valueType":%q,"intent":%q,"timestamp":%d,"value":{"bpmnProcessId":"letters","processInstanceKey":%d,%s}}`,
			position+n, key+n, valueType, intent, now.UnixMilli()+int64(n), key, value)
	}
	process := `"elementId":"letters","bpmnElementType":"PROCESS","version":1,"parentProcessInstanceKey":-1`
	positioned = []string{
		of(0, "PROCESS_INSTANCE", "ELEMENT_ACTIVATING", process),
		strings.Replace(of(1, "PROCESS_INSTANCE", "ELEMENT_ACTIVATED", process), fmt.Sprint(key+1), fmt.Sprint(key), 1),
		of(2, "VARIABLE", "CREATED", fmt.Sprintf(`"name":"email","value":%q,"scopeKey":%d`, fmt.Sprintf("%q", value), key)),
		of(3, "JOB", "CREATED", fmt.Sprintf(`"type":"send","retries":3,"variables":{"email":%q}`, value)),
		of(4, "JOB", "COMPLETED", fmt.Sprintf(`"type":"send","retries":3,"variables":{"email":%q}`, value)),
		strings.Replace(of(5, "PROCESS_INSTANCE", "ELEMENT_COMPLETED", process), fmt.Sprintf(`"key":%d`, key+5), fmt.Sprintf(`"key":%d`, key), 1),
	}
	others = []string{
		fmt.Sprintf(`{"id":"note-%d","valueType":"NOTE","timestamp":%d,"value":{"processInstanceKey":"%d","about":%q}}`, key, now.UnixMilli(), key, value),
		fmt.Sprintf(`{"valueType":"REMARK","timestamp":%d,"value":{"processInstanceKey":%d,"about":%q}}`, now.UnixMilli(), key, value),
		fmt.Sprintf(`{"id":"batch-%d","valueType":"JOB_BATCH","timestamp":%d,"value":{"jobs":[{"processInstanceKey":%d,"variables":{"email":%q}}]}}`, key, now.UnixMilli(), key, value),
	}
	return positioned, others
}

// TestForgetAPerson: all records of a person's instances are removed from tables, lanes
// and dead letters, while records flow and after the command was killed. All other
// records remain, for verify and for rebuild.
func TestForgetAPerson(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.up()
	s.exec("ALTER TABLE flow.records ADD CONSTRAINT not_poison CHECK error_message != 'poison'")
	now := time.Now().Add(-time.Minute)
	const instances = 6
	var all, again []string
	for i := range instances {
		value := person
		if i%2 == 1 {
			value = fmt.Sprintf("somebody-%d@example.org", i)
		}
		positioned, others := lifeOf(9_000_000_000_000_000+i*1000, 1+i*10, value, now)
		all = append(append(all, positioned...), others...)
		again = append(again, append(positioned, others[0], others[2])...)
	}
	post := func(records []string, size int) {
		t.Helper()
		for batch := range slices.Chunk(records, size) {
			fatal.If(t, wantOK(s.post([]byte("["+strings.Join(batch, ",")+"]"))))
		}
	}
	post([]string{`{"id":"the lane begins with it"}`}, 1)
	post(all, 7)
	post(again, 5) // deduplicated
	const key = 9_000_000_000_000_000
	fatal.If(t, wantOK(s.post(fmt.Appendf(nil, `{"id":"p","value":{"processInstanceKey":%d,"errorMessage":"poison","about":%q}}`, key, person))))
	loaded := s.loading("--records", "9000", "--rate", "1000", "--batch", "20", "--seed", "1")
	eventually(t, 20*time.Second, func() error {
		if n := len(s.letters()); n != 1 {
			return fmt.Errorf("%d dead letters, want 1", n)
		}
		return nil
	})
	s.eventuallyQuery(20*time.Second, "SELECT count() > 1000 FROM flow.records", "1")
	others := fmt.Sprintf("SELECT count(), sum(cityHash64(toString((process_instance_key, state, started_at, completed_at)))) FROM flow.v_process_instances WHERE process_instance_key LIKE '9000%%' AND process_instance_key NOT IN ('%d', '%d', '%d')", key, key+2000, key+4000)
	before, err := s.query(others)
	fatal.When(t, err != nil || !strings.HasPrefix(before, "3\t"), "instances of others: %s, %v", before, err)

	planned, out := s.forget(0, "--variable", "email="+person)
	if len(planned) != 1 || planned[0].Found == nil || planned[0].Found.Records != 27 || planned[0].Found.DeadLetters != 1 || !planned[0].Done.IsZero() {
		t.Fatalf("dry run: %+v:\n%s", planned, out)
	}
	s.verify(0, "--wait", "60s")
	asked := []string{"--variable", "email=" + person, "--yes", "--by", "the law"}
	killed := start(t, "sluice", append(s.forgetArgs(asked...), "--data", s.data)...)
	time.Sleep(300 * time.Millisecond)
	killed.kill()
	if code, out := run(t, "sluice", append(s.forgetArgs(asked...), "--data", s.data)...); code != 0 && !strings.Contains(out, "no instance has this value") {
		t.Fatalf("sluice forget: exit %d: %s", code, out)
	}
	if _, out := s.forget(1, "--variable", "email="+person, "--yes"); !strings.Contains(out, "no instance has this value of variable email") {
		t.Errorf("repeated:\n%s", out)
	}
	loaded()

	s.goneFromTables(person)
	tail := start(t, "sluice", "tail", "--data", s.data, "--nats", "nats://"+s.nats, "--from", "1")
	eventually(t, 10*time.Second, func() error {
		if !strings.Contains(tail.text(), "somebody-5@") {
			return errors.New("tail lacks records of other instances")
		}
		return nil
	})
	expect.Not(t, strings.Contains(tail.text(), person), "tail shows what is forgotten")
	tail.stop()
	s.eventuallyQuery(5*time.Second, others, before)
	text, err := s.query("SELECT argMax(receipt, changed) FROM flow.receipts WHERE done_at > toDateTime64(0, 3) GROUP BY id FORMAT TSVRaw")
	fatal.If(t, err)
	var r forget.Receipt
	if err := json.Unmarshal([]byte(strings.SplitN(text, "\n", 2)[0]), &r); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if r.Done.IsZero() || r.Records != 27 || len(r.Subjects) != 1 || len(r.Subjects[0].Keys) != 3 || r.Found.DeadLetters != 1 ||
		!r.LogUntil.After(r.Done) || len(r.Recounted) == 0 || r.Asked != "variable email" || r.By != "the law" || strings.Contains(text, person) {
		t.Errorf("the receipt is %s", text)
	}
	t.Log(strings.SplitN(text, "\n", 2)[0])
	accounts := func(repeated, forgotten uint64) {
		t.Helper()
		eventually(t, 30*time.Second, func() error {
			got := s.verify(0, "--deep").Total()
			if got.Waiting > 0 || got.Forgotten != forgotten || got.Dropped != 1 || got.Repeated != repeated {
				return fmt.Errorf("verify says %+v, want %d repeated and %d forgotten", got, repeated, forgotten)
			}
			return nil
		})
	}
	accounts(24, 27+24)
	if r := s.rebuild(0, "flow_rebuild"); r.Lanes[0].Differ != 0 {
		t.Errorf("rebuilt: %+v", r)
	}

	// Resent records are not stored, now and after a restart, which reads the known
	// requests from the lanes.
	post(again, 4)
	s.eventuallyQuery(20*time.Second, fmt.Sprintf("SELECT countIf(process_instance_key = '%d'), countIf(process_instance_key = '%d') FROM flow.records", key, key+1000), "0\t8")
	accounts(24+24, 27+24+24)
	if code := p.stop(); code != 0 {
		t.Fatalf("sluice ended with exit %d", code)
	}
	p = s.up()
	post(again, 3)
	accounts(24+48, 27+24+48)
	s.eventuallyQuery(5*time.Second, others, before)
	if text := p.text(); strings.Contains(text, "have lost") || strings.Contains(text, person) {
		t.Errorf("sluice up says:\n%s", text)
	}
}

// TestForgetRefuses: an instance that has not ended, and one that does not exist.
func TestForgetRefuses(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.up()
	positioned, _ := lifeOf(9_000_000_000_000_000, 1, person, time.Now())
	for i := range positioned[:5] {
		fatal.If(t, wantOK(s.post([]byte(positioned[i]))))
	}
	s.eventuallyStored(5)
	for args, want := range map[string]string{
		"--instance 9000000000000000 --yes":                    "--running",
		"--instance 9000000000000000 --source cluster-b --yes": "no instance 9000000000000000",
		"--instance 1 --variable a=b":                          "not both",
		"--variable email=":                                    "no value",
		"--variable =x":                                        "--variable has no name",
	} {
		if _, out := s.forget(1, strings.Fields(args)...); !strings.Contains(out, want) {
			t.Errorf("forget %s: want %q in\n%s", args, want, out)
		}
	}
	if got := s.forgotten("--instance", "9000000000000000", "--running", "--yes"); got.Records != 5 {
		t.Errorf("got %+v, want 5 records", got)
	}
	s.verify(0)
	positioned, _ = lifeOf(9_000_000_000_000_000, 1, person, time.Now()) // its later records are stored
	fatal.If(t, wantOK(s.post([]byte(positioned[5]))))
	s.eventuallyStored(6)
	// The purger removes the messages with the lane's history.
	last := s.jetStreamLast()
	s.purge(last - 1)
	if r := s.verify(0); r.Purged() != (flow.Totals{Read: 5, Stored: 5}) || r.Lanes[0].ForgottenBefore != 5 {
		t.Errorf("before: %+v", r.Lanes[0])
	}
	s.goneFromStreams(person)
}

// jetStreamLast returns the last sequence of lane 0.
func (s *stack) jetStreamLast() uint64 {
	s.t.Helper()
	info, err := s.jetStream().StreamInfo("FLOW_0")
	fatal.If(s.t, err)
	return info.State.LastSeq
}

// forgotten returns the receipt of a completed command.
func (s *stack) forgotten(args ...string) forget.Receipt {
	s.t.Helper()
	all, out := s.forget(0, args...)
	fatal.When(s.t, len(all) != 1 || all[0].Done.IsZero(), "%d receipts:\n%s", len(all), out)
	return all[0]
}

// goneFromTables requires that no row of any table contains a text.
func (s *stack) goneFromTables(text string) {
	s.t.Helper()
	tables, err := s.query("SELECT name FROM system.tables WHERE database = 'flow' AND engine LIKE '%MergeTree' ORDER BY name")
	fatal.If(s.t, err)
	for _, table := range strings.Fields(tables) {
		n, err := s.query(fmt.Sprintf("SELECT count() FROM flow.%s AS t WHERE position(toString(tuple(t.*)), '%s') > 0", table, text))
		expect.Not(s.t, err != nil || n != "0", "%s rows of %s have it, %v", n, table, err)
	}
}

// goneFromStreams requires that no message of any stream contains a text.
func (s *stack) goneFromStreams(text string) {
	s.t.Helper()
	js := s.jetStream()
	seen := 0
	for name := range js.StreamNames() {
		info, err := js.StreamInfo(name)
		fatal.If(s.t, err)
		for seq := info.State.FirstSeq; seq <= info.State.LastSeq && info.State.Msgs > 0; seq++ {
			msg, err := js.GetMsg(name, seq)
			if err != nil {
				continue // deleted
			}
			seen++
			expect.Not(s.t, strings.Contains(plainText(msg), text), "message %d of %s has it", seq, name)
		}
	}
	expect.Not(s.t, seen == 0, "the streams are empty")
}

// plainText returns a message, followed by the decompressed requests of an entry.
func plainText(msg *nats.RawStreamMsg) string {
	all := fmt.Sprint(msg.Header) + string(msg.Data)
	var e flow.Entry
	table, err := base64.RawStdEncoding.DecodeString(msg.Header.Get("Sluice-Entry"))
	if err != nil || e.Parse(table, msg.Data) != nil {
		return all
	}
	for _, m := range e.Messages {
		if plain, err := s2.Decode(nil, m.Body); err == nil {
			all += string(plain)
		}
	}
	return all
}
