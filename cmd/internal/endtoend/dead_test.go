package endtoend

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// exec runs a statement in ClickHouse.
func (s *stack) exec(sql string) {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+s.chHTTP+"/", strings.NewReader(sql))
	fatal.If(s.t, err)
	if password := s.secret("clickhouse-admin"); password != "" {
		req.SetBasicAuth("admin", password)
	}
	res, err := s.client.Do(req)
	fatal.If(s.t, err)
	defer res.Body.Close()
	if body, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s: %s", sql, res.Status, body)
	}
}

// publish publishes a message to a lane, bypassing the api.
func (s *stack) publish(lane int, body string, head nats.Header) {
	s.t.Helper()
	if _, err := s.jetStream().PublishMsg(&nats.Msg{Subject: fmt.Sprintf("flow.%d.record", lane), Header: head, Data: []byte(body)}); err != nil {
		s.t.Fatal(err)
	}
}

// sluice runs an operator's command and returns its output and log. The exit status must
// be want.
func (s *stack) sluice(want int, args ...string) string {
	s.t.Helper()
	out, log := s.printed(want, args...)
	return out + log
}

// printed is sluice with a separate log.
func (s *stack) printed(want int, args ...string) (out, log string) {
	s.t.Helper()
	code, out, log := ran(s.t, "sluice", append(args, "--data", s.data)...)
	if code != want {
		s.t.Errorf("sluice %s: exit %d, want %d\n%s%s", strings.Join(args, " "), code, want, out, log)
	}
	return out, log
}

type letter struct {
	Number   uint64
	Code     string
	Reason   string
	Lane     int
	Sequence uint64
	Index    int
	ID       string
	Subject  string
}

func (s *stack) letters(filters ...string) []letter {
	s.t.Helper()
	var all []letter
	out, _ := s.printed(0, append([]string{"dead", "list", "--json", "--nats", "nats://" + s.nats}, filters...)...)
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var l letter
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			s.t.Fatalf("%v in:\n%s", err, out)
		}
		all = append(all, l)
	}
}

// eventuallyLetters waits until the dead letters, without numbers, are want.
func (s *stack) eventuallyLetters(want ...letter) (numbers []string) {
	s.t.Helper()
	eventually(s.t, 20*time.Second, func() error {
		var got []letter
		numbers = nil
		for _, l := range s.letters() {
			numbers = append(numbers, strconv.FormatUint(l.Number, 10))
			l.Number, l.Sequence, l.Reason = 0, 0, ""
			got = append(got, l)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("dead letters (-want +got):\n%s", diff)
		}
		return nil
	})
	return numbers
}

// TestAPoisonRecordIsDeadLetteredAndReplayedOnce: ClickHouse rejects one record of a batch.
// The others are stored; it is dead-lettered with its reason, again after each replay,
// until it is accepted and stored once.
func TestAPoisonRecordIsDeadLetteredAndReplayedOnce(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.up()
	at := "nats://" + s.nats
	s.exec("ALTER TABLE flow.records ADD CONSTRAINT not_poison CHECK error_message != 'poison'")
	var batch []string
	for i := range 100 {
		message := "fine"
		if i == 42 {
			message = "poison"
		}
		batch = append(batch, fmt.Sprintf(`{"id":"1-%d","valueType":"JOB","value":{"errorMessage":"%s"}}`, i, message))
	}
	res, body := s.post([]byte("[" + strings.Join(batch, ",") + "]"))
	fatal.If(t, wantOK(res, body))
	poison := letter{Code: "refused", Index: 42, ID: "1-42", Subject: "local"}
	number := s.eventuallyLetters(poison)[0]
	s.eventuallyQuery(10*time.Second, "SELECT count(), uniqExact(id), countIf(id = '1-42') FROM flow.records", "99\t99\t0")

	t.Run("show prints the reason, the origin and the bytes", func(t *testing.T) {
		out := s.sluice(0, "dead", "show", number, "--nats", at)
		for _, want := range []string{"dead letter " + number, "ClickHouse rejects the data", "(refused)", "record 42 of message 1 of lane 0", "from local", `"errorMessage": "poison"`} {
			expect.Not(t, !strings.Contains(out, want), "does not show %q:\n%s", want, out)
		}
		expect.Equal(t, "raw bytes", batch[42], s.sluice(0, "dead", "show", number, "--raw", "--nats", at))
		s.sluice(1, "dead", "show", "999", "--nats", at)
	})
	t.Run("filters select letters", func(t *testing.T) {
		for filter, want := range map[string]int{
			"--code=refused": 1, "--code=other": 0, "--lane=0": 1, "--lane=1": 0, "--subject=local": 1, "--subject=else": 0, "--since=1h": 1, "--since=0s": 0,
		} {
			if got := len(s.letters(filter)); got != want {
				t.Errorf("%s lists %d letters, want %d", filter, got, want)
			}
		}
	})
	t.Run("a dry run changes nothing", func(t *testing.T) {
		if out := s.sluice(0, "dead", "replay", "--all", "--dry-run", "--nats", at); !strings.Contains(out, "1-42") || !strings.Contains(out, "1 would be replayed") {
			t.Errorf("printed:\n%s", out)
		}
		if out := s.sluice(1, "dead", "drop", number, "--nats", at); !strings.Contains(out, "--yes") {
			t.Errorf("printed:\n%s", out)
		}
		s.eventuallyLetters(poison)
	})
	t.Run("an invalid record becomes a dead letter again", func(t *testing.T) {
		s.sluice(0, "dead", "replay", number, "--nats", at)
		back := poison
		back.Index = 0 // a message of its own now
		eventually(t, 20*time.Second, func() error {
			if got := s.letters(); len(got) != 1 || got[0].Sequence != 2 {
				return fmt.Errorf("dead letters: %+v", got)
			}
			return nil
		})
		s.eventuallyLetters(back)
	})
	t.Run("a valid record is stored once, after any number of replays", func(t *testing.T) {
		s.exec("ALTER TABLE flow.records DROP CONSTRAINT not_poison")
		var together sync.WaitGroup
		for range 4 {
			together.Go(func() { run(t, "sluice", "dead", "replay", "--all", "--nats", at, "--data", s.data) })
		}
		together.Wait()
		s.eventuallyLetters()
		s.eventuallyQuery(20*time.Second, "SELECT count(), uniqExact(id), countIf(id = '1-42') FROM flow.records", "100\t100\t1")
		s.eventuallyQuery(5*time.Second, "SELECT sum(records) FROM flow.counts_1m", "100")
		if out := s.sluice(0, "dead", "replay", "--all", "--nats", at); !strings.HasPrefix(out, "0 replayed") {
			t.Errorf("printed:\n%s", out)
		}
	})
}

// TestABrokenMessageIsDeadLetteredWhole: a message that cannot be decoded blocks nothing, and
// can be inspected and dropped.
func TestABrokenMessageIsDeadLetteredWhole(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.up()
	at := "nats://" + s.nats
	s.publish(0, "\x1b]0;gotcha\x07 not JSON", nats.Header{"Sluice-Subject": {"a\x1b[2J"}})
	s.publish(0, `[{"id":"1-1"},{"id":"1-2","key":"x"},7]`, nil)
	fatal.If(t, wantOK(s.post([]byte(`{"id":"1-3"}`))))
	s.eventuallyQuery(20*time.Second, "SELECT arraySort(groupArray(id)) FROM flow.records", "['1-1','1-3']")
	numbers := s.eventuallyLetters(
		letter{Code: "not_an_array", Index: -1, Subject: "a\x1b[2J"},
		letter{Code: "not_an_integer", Index: 1, ID: "1-2"},
		letter{Code: "not_an_object", Index: 2},
	)
	for _, out := range []string{s.sluice(0, "dead", "show", numbers[0], "--nats", at), s.sluice(0, "dead", "list", "--nats", at)} {
		expect.Not(t, strings.Contains(out, "\x1b"), "writes what was sent to the terminal as it is: %q", out)
	}
	if out := s.sluice(0, "dead", "show", numbers[0], "--nats", at); !strings.Contains(out, "1b 5d 30 3b") {
		t.Errorf("does not show the bytes:\n%s", out)
	}
	s.sluice(0, "dead", "drop", numbers[0], numbers[2], "--yes", "--nats", at)
	s.eventuallyLetters(letter{Code: "not_an_integer", Index: 1, ID: "1-2"})
	s.sluice(0, "dead", "drop", "--code", "not_an_integer", "--yes", "--nats", at)
	s.eventuallyLetters()
}
