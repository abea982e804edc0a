package stream_test

import (
	"cmp"
	"errors"
	"fmt"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

func TestWhatAPurgerKeeps(t *testing.T) {
	lane := func(first, messages, bytes uint64, maxBytes int64) *stream.Lane {
		return &stream.Lane{First: first, Last: first + messages - 1, Messages: messages, Bytes: bytes, MaxBytes: maxBytes}
	}
	for name, c := range map[string]struct {
		lane                 *stream.Lane
		done, known, history uint64
		want                 uint64
		window               uint64 // 0: nothing behind done
	}{
		"all of it is history":                         {lane(1, 100, 1000, 10_000), 100, 101, 1, 1, 0},
		"what is older than the history goes":          {lane(1, 100, 1000, 10_000), 100, 101, 41, 41, 0},
		"but not what is not stored":                   {lane(1, 100, 1000, 10_000), 20, 101, 41, 21, 0},
		"nor the deduplication window":                 {lane(1, 100, 1000, 10_000), 100, 31, 41, 31, 0},
		"a lane more than half full keeps half":        {lane(1, 100, 1000, 1000), 100, 101, 1, 51, 0},
		"or what is not stored":                        {lane(1, 100, 1000, 1000), 10, 101, 1, 11, 0},
		"or in the deduplication window":               {lane(1, 100, 1000, 1000), 100, 31, 1, 31, 0},
		"a lane that begins later":                     {lane(1001, 100, 1000, 1000), 1100, 1101, 1001, 1051, 0},
		"a lane without a limit keeps its history":     {lane(1, 100, 1000, -1), 100, 101, 41, 41, 0},
		"nothing stored, nothing goes":                 {lane(1, 100, 1000, 1000), 0, 101, 101, 1, 0},
		"everything may go":                            {lane(1, 100, 1000, 10_000), 100, 101, 101, 101, 0},
		"nor the window of requests":                   {lane(1, 100, 1000, 1000), 100, 101, 101, 31, 31},
		"history may be shorter than the known window": {lane(1, 100, 1000, 10_000), 100, 51, 101, 51, 0},
	} {
		t.Run(name, func(t *testing.T) {
			pos := flow.LaneState{Done: c.done, DedupFrom: cmp.Or(c.window, c.done+1)}
			expect.Equal(t, "keeps from", c.want, stream.KeepFrom(c.lane, pos, c.known, c.history))
		})
	}
}

func TestAMessageIsFoundByItsTime(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	at := func(since time.Time, want uint64) {
		t.Helper()
		if got, err := w.FirstSince(t.Context(), 0, since); err != nil || got != want {
			t.Errorf("first since %v: got %d, %v, want %d", since, got, err, want)
		}
	}
	begin := time.Now()
	at(begin, 1)
	w.publish(p, "a", 3)
	time.Sleep(10 * time.Millisecond)
	middle := time.Now()
	time.Sleep(10 * time.Millisecond)
	w.publish(p, "b", 3)
	at(begin.Add(-time.Hour), 1)
	at(middle, 4)
	at(time.Now().Add(time.Second), 7)
}

func TestPurgingNeverForgetsAnIDWithinItsWindow(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 1 << 20, DuplicateWindow: time.Minute})
	p := w.publisher()
	for i := range 40 {
		if _, err := p.Publish(t.Context(), submission(fmt.Sprintf("id-%d", i), 16<<10)); err != nil {
			t.Fatal(err)
		}
	}
	w.swapTo(0, 40) // all are stored, and the lane is more than half full
	purger := stream.NewPurger(w.Stream, stream.PurgeConfig{History: time.Nanosecond})
	fatal.If(t, purger.Purge(t.Context()))
	w.server.Restart()
	w.connected(t.Context())
	for i := range 40 {
		got, err := p.Publish(t.Context(), submission(fmt.Sprintf("id-%d", i), 16<<10))
		fatal.When(t, err != nil || !got.Replayed, "repeat of id-%d: got %+v, %v", i, got, err)
	}
}

func TestPurgingMakesRoomAgain(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 1 << 20, DuplicateWindow: 100 * time.Millisecond})
	p := w.publisher()
	n := 0
	var err error
	for ; err == nil; n++ {
		_, err = p.Publish(t.Context(), submission(fmt.Sprintf("id-%d", n), 16<<10))
	}
	if !errors.Is(err, flow.ErrFull) {
		t.Fatal(err)
	}
	stored := uint64(n - 1)
	w.swapTo(0, stored-5)
	purger := stream.NewPurger(w.Stream, stream.PurgeConfig{})
	purger.SetMargin(0)
	time.Sleep(300 * time.Millisecond)
	fatal.If(t, purger.Purge(t.Context()))
	fatal.If(t, w.Refresh(t.Context()))
	lane := w.Lanes()[0]
	if lane.Bytes > 1<<19 || lane.Bytes < 1<<18 || lane.Last != stored {
		t.Errorf("the lane holds %d bytes, %d to %d, want about half of 1 MiB, to %d", lane.Bytes, lane.First, lane.Last, stored)
	}
	if _, err := p.Publish(t.Context(), submission("more", 16<<10)); err != nil {
		t.Errorf("publish after the purge: %v", err)
	}
	// Messages that are not stored are kept, whatever the history.
	purger = stream.NewPurger(w.Stream, stream.PurgeConfig{History: time.Nanosecond})
	purger.SetMargin(0)
	time.Sleep(300 * time.Millisecond) // "more" is out of its window too
	fatal.If(t, purger.Purge(t.Context()))
	if list := w.all(0); list[0].Seq != stored-4 {
		t.Errorf("the lane begins at %d, want %d, the first that is not stored", list[0].Seq, stored-4)
	}
}

// TestALaneOfAnEarlierTimeIsNotPurged: NATS was restored from a backup, and the lane ends before
// the checkpoint. Its messages may have been accepted since and not stored.
func TestALaneOfAnEarlierTimeIsNotPurged(t *testing.T) {
	w := open(t, stream.Config{DuplicateWindow: 100 * time.Millisecond})
	w.publish(w.publisher(), "id", 10)
	w.swapTo(0, 10)
	w.swapTo(0, 15)
	time.Sleep(300 * time.Millisecond)
	purger := stream.NewPurger(w.Stream, stream.PurgeConfig{History: time.Nanosecond})
	purger.SetMargin(0)
	fatal.If(t, purger.Purge(t.Context()))
	expect.Equal(t, "the lane holds messages", 10, len(w.all(0)))
	lags, err := w.Lag(t.Context())
	expect.Not(t, err != nil || len(lags) != 1 || lags[0].Messages != 10 || lags[0].Bytes == 0, "the lag is %+v, %v, want 10 messages", lags, err)
}

// TestWhatABackupAsksForIsKept until it unpins, or its pin expires.
func TestWhatABackupAsksForIsKept(t *testing.T) {
	w := open(t, stream.Config{DuplicateWindow: 100 * time.Millisecond})
	w.publish(w.publisher(), "id", 10)
	w.swapTo(0, 10)
	purger := stream.NewPurger(w.Stream, stream.PurgeConfig{History: time.Nanosecond})
	purger.SetMargin(0)
	time.Sleep(300 * time.Millisecond) // out of the window of their ids
	begins := func(want uint64) {
		t.Helper()
		fatal.If(t, errors.Join(purger.Purge(t.Context()), w.Refresh(t.Context())))
		expect.Equal(t, "the lane begins at", want, w.Lanes()[0].First)
	}
	fatal.If(t, w.Pin(t.Context(), 0, stream.PinVerify, 4, time.Hour))
	if err := w.Pin(t.Context(), 0, stream.PinBackup, 6, time.Hour); err != nil { // the lowest pin counts
		t.Fatal(err)
	}
	begins(4)
	fatal.If(t, w.Unpin(t.Context(), 0, stream.PinVerify))
	begins(6)
	if err := w.Pin(t.Context(), 0, stream.PinBackup, 7, -time.Second); err != nil { // expired
		t.Fatal(err)
	}
	begins(11)
	for range 2 { // unpinning twice succeeds
		fatal.If(t, w.Unpin(t.Context(), 0, stream.PinBackup))
	}
}

// TestAnIdleLaneIsPurgedInTheEnd: its checkpoint requires its last requests until enough stream
// time has passed, which takes messages.
func TestAnIdleLaneIsPurgedInTheEnd(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 16 << 20, DuplicateWindow: 100 * time.Millisecond})
	w.publish(w.publisher(), "id", 3)
	purger := stream.NewPurger(w.Stream, stream.PurgeConfig{History: time.Nanosecond})
	purger.SetMargin(0)
	purger.SetStep(300 * time.Millisecond)
	states := stream.NewLaneStates(w.Stream)
	stored := func(done, from uint64) {
		t.Helper()
		pos, err := states.Read(t.Context(), 0)
		pos.StreamID, pos.Done, pos.DedupFrom = w.Lanes()[0].StreamID(), done, from
		if err == nil {
			_, err = states.CompareAndSwap(t.Context(), 0, pos)
		}
		fatal.If(t, err)
	}
	purge := func(first, last uint64) {
		t.Helper()
		fatal.If(t, errors.Join(purger.Purge(t.Context()), w.Refresh(t.Context())))
		if lane := w.Lanes()[0]; lane.First != first || lane.Last != last {
			t.Errorf("the lane holds %d to %d, want %d to %d", lane.First, lane.Last, first, last)
		}
	}
	stored(2, 1) // the backlog is stored without ticks
	time.Sleep(400 * time.Millisecond)
	purge(1, 3)
	stored(3, 1)
	purge(1, 4)
	stored(4, 1)
	purge(1, 4) // not so soon again
	time.Sleep(400 * time.Millisecond)
	purge(1, 5)
	stored(5, 6) // no request is within the window any more
	time.Sleep(400 * time.Millisecond)
	purge(6, 5)
	purge(6, 5)
}
