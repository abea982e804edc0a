package stream_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// junk is a letter of the api: bytes of a source that are not a record.
func junk(source string, size int) flow.Dead {
	body := make([]byte, size)
	for i := range body {
		body[i] = byte('!' + rand.IntN(90))
	}
	return flow.Dead{
		Message: flow.Message{Source: source, Subject: source, Received: time.Now(), Records: 1, Body: body},
		Index:   -1, Code: "invalid_json", Reason: "the document is not JSON",
	}
}

// inLane is a letter of the ingester.
func inLane(source string, seq uint64, size int) flow.Dead {
	d := junk(source, size)
	d.Message.Topic, d.Message.Seq, d.Index = stream.RecordTopic(0), seq, 0
	return d
}

// TestOneSourceFillsNotTheRoomOfOthers: several apis dead-letter one source concurrently until it
// is refused. Another source, the ingester, and a change still have room.
func TestOneSourceFillsNotTheRoomOfOthers(t *testing.T) {
	t.Parallel()
	const room, size = 32 << 20, 300 << 10
	first := open(t, stream.Config{DeadMaxBytes: room})
	apis := []*stream.DeadLetters{stream.NewDeadLetters(first.Stream)}
	for range 2 {
		apis = append(apis, stream.NewDeadLetters(openOn(t, first.server, stream.Config{}).Stream))
	}
	flood := func(source string) {
		t.Helper()
		var all sync.WaitGroup
		var mu sync.Mutex
		refused := make(map[string]int)
		for i := range 3 * room / size {
			all.Go(func() {
				letter := junk(source, size)
				err := apis[i%len(apis)].Publish(t.Context(), letter)
				for errors.Is(err, flow.ErrUnavailable) { // a busy machine answers late
					err = apis[i%len(apis)].Publish(t.Context(), letter)
				}
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					refused[fmt.Sprint(errors.Is(err, flow.ErrDeadShare))]++
				}
			})
		}
		all.Wait()
		fatal.When(t, refused["true"] == 0 || refused["false"] > 0, "letters of %s refused because of its share, or for another reason: %v", source, refused)
	}
	took := func() uint64 {
		t.Helper()
		is, err := apis[0].Room(t.Context())
		fatal.If(t, err)
		return is.Bytes
	}
	flood("a")
	if got := took(); got < room/4 || got > room*5/8 {
		t.Errorf("one source has %d of %d bytes, want about half", got, room)
	}
	flood("b")
	if got := took(); got > room*6/8 {
		t.Errorf("two sources have %d of %d bytes, want about two thirds of seven eighths", got, room)
	}
	for i, api := range apis {
		if err := api.Publish(t.Context(), junk("c", size)); err != nil {
			t.Errorf("api %d: a source that has none is refused: %v", i, err)
		}
		if err := api.Publish(t.Context(), inLane("d", uint64(i+1), size)); err != nil {
			t.Errorf("a letter of the ingester: %v", err)
		}
	}
	if err := apis[0].Admits("a"); err != nil {
		t.Errorf("the records of a source are refused for what were none: %v", err)
	}
}

// TestALetterThatIsThereIsNotRefused: an exporter resends its whole bulk.
func TestALetterThatIsThereIsNotRefused(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{DeadMaxBytes: 64 << 10})
	letters := stream.NewDeadLetters(w.Stream)
	var kept []flow.Dead
	for {
		d := junk("a", 4<<10)
		err := letters.Publish(t.Context(), d)
		if errors.Is(err, flow.ErrDeadShare) {
			break
		}
		fatal.If(t, err)
		kept = append(kept, d)
	}
	for _, d := range kept {
		if err := letters.Publish(t.Context(), d); err != nil {
			t.Errorf("a letter that is there: %v", err)
		}
	}
	expect.Equal(t, "letters", len(kept), len(w.list(stream.DeadFilter{})))
}

// TestDroppedLettersMakeRoom for the source again.
func TestDroppedLettersMakeRoom(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{DeadMaxBytes: 64 << 10})
	letters := stream.NewDeadLetters(w.Stream)
	fill := func() (n int) {
		for ; letters.Publish(t.Context(), junk("a", 4<<10)) == nil; n++ {
		}
		return n
	}
	before := fill()
	for _, d := range w.list(stream.DeadFilter{}) {
		fatal.If(t, letters.Drop(t.Context(), d))
	}
	time.Sleep(stream.RecountEvery)
	if again := fill(); before == 0 || again != before {
		t.Errorf("%d letters before and %d after all were dropped, want the same", before, again)
	}
}

// TestChangesHaveRoomWhenRecordsHaveNone: only posts of the source whose letters fill the room are
// refused, until the letters are gone.
func TestChangesHaveRoomWhenRecordsHaveNone(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{DeadMaxBytes: 256 << 10})
	run, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(run) }()
	defer func() { stop(); <-ended }()
	letters := stream.NewDeadLetters(w.Stream)
	var err error
	for seq := uint64(1); err == nil; seq++ {
		err = letters.Publish(t.Context(), inLane("a", seq, 8<<10))
	}
	fatal.When(t, !errors.Is(err, flow.ErrFull), "records: got %v, want %v", err, flow.ErrFull)
	change := inLane("", 1000, 8<<10)
	change.Message.Topic = stream.ChangePrefix + "user.x"
	if err := letters.Publish(t.Context(), change); err != nil {
		t.Errorf("a change: %v", err)
	}
	until := func(source string, want error) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !errors.Is(letters.Admits(source), want); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("posts of %s: %v, want %v", source, letters.Admits(source), want)
			}
		}
	}
	until("a", flow.ErrDeadShare)
	until("b", nil)
	for _, d := range w.list(stream.DeadFilter{}) {
		fatal.If(t, letters.Drop(t.Context(), d))
	}
	until("a", nil)
}
