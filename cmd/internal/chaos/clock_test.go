package main_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	trial "sluice/cmd/internal/chaos"
)

// clocksAndFrozenApis: the clocks of NATS, of an api and of an operator step by
// ten minutes and back, and an api stands still in the middle of a publish for
// longer than repeats are recognised. A request that is repeated over both apis
// is stored once, whatever they do; what came too late counts for nothing, and
// no client is told OK for it.
func clocksAndFrozenApis(t *testing.T, programs string) {
	const window = time.Minute // in which a step of a server's clock counts for 30 s at most
	var journal bytes.Buffer
	s, end, err := trial.NewSite(t.Context(), trial.Config{Bin: programs, RepeatWindow: window, Journal: &journal}, t.TempDir())
	if end != nil {
		defer end()
	}
	if err != nil {
		t.Fatalf("%s\n%v", journal.String(), err)
	}
	want := map[string]int{}
	post := func(api int, key string, records int) {
		t.Helper()
		want[key] = records
		err := s.Post(t.Context(), api, key, records)
		for deadline := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(deadline); err = s.Post(t.Context(), api, key, records) {
			time.Sleep(100 * time.Millisecond) // as a client does
		}
		if err != nil {
			t.Errorf("post %s to api %d: %v", key, api+1, err)
		}
	}
	set := func(machine string, off time.Duration) {
		t.Helper()
		if err := s.SetClock(machine, off); err != nil {
			t.Fatal(err)
		}
		time.Sleep(150 * time.Millisecond) // programs look every 50 ms
	}
	for _, machine := range s.Machines() {
		for _, off := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
			key := fmt.Sprint(machine, " ", off)
			post(0, key, 3)
			set(machine, off)
			post(1, key, 3)
			s.Operate(t.Context(), "lanes", "make")
			set(machine, 0)
			post(0, key, 3)
		}
	}

	frozen := make(chan struct{})
	go func() {
		defer close(frozen)
		s.Freeze(t.Context(), "api-1", window/4+time.Second) // an api that was slower looks before it answers
	}()
	time.Sleep(100 * time.Millisecond)
	late := make(chan error, 1)
	go func() { late <- s.Post(t.Context(), 0, "late", 5) }()
	for deadline := time.Now().Add(10 * time.Second); s.Freezes() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s\nit was not frozen", journal.String())
		}
	}
	post(1, "late", 5) // what the client does when it hears nothing
	for n := range 3 { // and more time than the window goes by
		set("nats-1", 10*time.Minute)
		post(1, fmt.Sprint("meanwhile ", n), 1)
		set("nats-1", 0)
		post(1, fmt.Sprint("later ", n), 1)
	}
	<-frozen
	if err := <-late; err == nil {
		t.Error("the frozen api answered OK for an entry that counts for nothing")
	} else {
		t.Logf("the frozen api answered %v", err)
	}
	post(0, "afterwards", 2)

	stored, void, err := s.Stored(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, stored); diff != "" {
		t.Errorf("stored records of each key (-want +got):\n%s", diff)
	}
	if void == 0 || void%5 != 0 { // the api may have sent them once more
		t.Errorf("%d records were void, want the 5 of the frozen api", void)
	}
	if ok, err := s.Verify(t.Context()); err != nil || !ok {
		t.Errorf("%s\nverify: %v, %v", journal.String(), ok, err)
	}
}
