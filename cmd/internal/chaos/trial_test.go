package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

func TestChaos(t *testing.T) {
	t.Parallel()
	programs := t.TempDir()
	fatal.If(t, deployment.BuildWithClocks(t.Context(), programs))
	for name, test := range map[string]func(*testing.T, string){
		"for half a minute":      forHalfAMinute,
		"clocks and frozen apis": clocksAndFrozenAPIs,
		"rolling restarts":       rollingRestarts,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, programs)
		})
	}
}

// forHalfAMinute is a short `make chaos` under a moderate load: 34 faults of every kind
// that needs one NATS server and seconds, and short operations.
func forHalfAMinute(t *testing.T, programs string) {
	var journal bytes.Buffer
	result, err := chaos(t.Context(), Config{
		Bin: programs, For: 30 * time.Second, Seed: 5, NATS: 1, Rate: 2000, Every: time.Second,
		StreamMaxBytes: 1 << 30, RepeatWindow: 5 * time.Minute, Journal: &journal,
		Faults: []string{"recount", "migrate-ttl", "dead-replay", "forget", "two-sources"},
	})
	t.Log(result)
	if err != nil {
		t.Fatalf("%s\n%v", journal.String(), err)
	}
	if result.Acked == 0 || result.Done["kill"] == 0 || result.Done["pause"] == 0 {
		t.Errorf("%s\nthe run proves nothing", journal.String())
	}
}

// rollingRestarts is a short `make upgrade`: two apis and two ingesters are replaced one
// by one, by the same version and by the same one in another folder. No record is lost or
// duplicated, and every request succeeds within a second of retries.
func rollingRestarts(t *testing.T, programs string) {
	other := filepath.Join(t.TempDir(), "previous")
	fatal.If(t, os.Symlink(programs, other))
	var journal bytes.Buffer
	result, err := upgrade(t.Context(), Upgrade{Bin: programs, Previous: other, For: 40 * time.Second, Rate: 500, Seed: 1, Journal: &journal})
	t.Log(result)
	if err != nil {
		t.Fatalf("%s\n%v", journal.String(), err)
	}
	if result.Acked == 0 || result.Done["replace"] < 12 {
		t.Errorf("%s\nwant at least 12 processes replaced under load: by a new version, the same, and the previous", journal.String())
	}
}

// clocksAndFrozenAPIs: the clocks of NATS, of an api and of an operator step by ten
// minutes and back. An api freezes during a publish for longer than the deduplication
// window. A request retried over both apis is stored once. The late entry is void, and no
// client gets OK for it.
func clocksAndFrozenAPIs(t *testing.T, programs string) {
	const window = time.Minute // in which a step of a server's clock counts for 30 s at most
	var journal bytes.Buffer
	cfg := Config{Bin: programs, RepeatWindow: window, NATS: 1, StreamMaxBytes: 1 << 30, For: 30 * time.Minute}
	s, err := newSite(t.Context(), cfg, t.TempDir(), []string{"engine-a"}, newJournal(&journal))
	s.EndWith(t)
	if err != nil {
		t.Fatalf("%s\n%v", journal.String(), err)
	}
	send := func(api int, key string, records int) error {
		record := fmt.Sprintf(`{"recordType":"EVENT","valueType":"VARIABLE","intent":"CREATED","timestamp":1763701200123,"value":{"bpmnProcessId":%q,"name":"n","value":"1"}}`, key)
		to := newPoster("http://"+s.Of(deployment.API)[api].HTTP, s.Token)
		to.client.Timeout = time.Minute
		_, err := to.post(t.Context(), []byte("["+strings.Repeat(record+",", records-1)+record+"]"), key)
		return err
	}
	want := map[string]int{}
	post := func(api int, key string, records int) {
		t.Helper()
		want[key] = records
		err := send(api, key, records)
		for deadline := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(deadline); err = send(api, key, records) {
			time.Sleep(100 * time.Millisecond) // as a client does
		}
		expect.Not(t, err != nil, "post %s to api %d: %v", key, api+1, err)
	}
	set := func(machine string, off time.Duration) {
		t.Helper()
		fatal.If(t, s.SetClock(machine, off))
		time.Sleep(150 * time.Millisecond) // programs read it every 50 ms
	}
	for _, machine := range machines(s.Deployment) {
		for _, off := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
			key := fmt.Sprint(machine, " ", off)
			post(0, key, 3)
			set(machine, off)
			post(1, key, 3)
			fatal.If(t, s.operate(t.Context(), s.lanes("make")...))
			set(machine, 0)
			post(0, key, 3)
		}
	}

	frozen := make(chan struct{})
	go func() {
		defer close(frozen)
		_ = s.carryOut(t.Context(), freeze(s.Process("api"), window/4+time.Second)) // an api paused for longer than that checks before it answers
	}()
	time.Sleep(100 * time.Millisecond)
	late := make(chan error, 1)
	go func() { late <- send(0, "late", 5) }()
	for deadline := time.Now().Add(10 * time.Second); s.journal.sum()["freeze"] == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s\nit was not frozen", journal.String())
		}
	}
	post(1, "late", 5) // as a client that got no answer
	for n := range 3 { // longer than the window
		set("nats", 10*time.Minute)
		post(1, fmt.Sprint("meanwhile ", n), 1)
		set("nats", 0)
		post(1, fmt.Sprint("later ", n), 1)
	}
	<-frozen
	if err := <-late; err == nil {
		t.Error("the frozen api answered OK for a void entry")
	} else {
		t.Logf("the frozen api answered %v", err)
	}
	post(0, "afterwards", 2)

	fatal.If(t, s.WaitStored(t.Context()))
	stored := map[string]int{}
	rows, err := s.Query(t.Context(), "SELECT replaceAll(bpmn_process_id, ' ', '_'), count() FROM flow.records GROUP BY ALL FORMAT TabSeparated")
	fatal.If(t, err)
	for line := range strings.Lines(rows) {
		var key string
		var n int
		if _, err := fmt.Sscan(line, &key, &n); err != nil {
			t.Fatal(err)
		}
		stored[strings.ReplaceAll(key, "_", " ")] = n
	}
	expect.Equal(t, "stored records of each key", want, stored)
	account, err := s.verify(t.Context())
	if err != nil || !account.OK {
		t.Errorf("%s\nverify: %v, %v", journal.String(), account.OK, err)
	}
	// The api may have sent the entry twice.
	if void := account.Total().Void + account.Purged().Void; void == 0 || void%5 != 0 {
		t.Errorf("%d records were void, want the 5 of the frozen api", void)
	}
}
