package stream_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

func TestWhatIsPublishedIsReadBack(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	p := w.publisher()
	for _, sub := range []*flow.Submission{
		submission("small", 100),
		submission("chunks", 400, 40<<10, 5),
		submission("large", 700<<10),
		{ID: "bare", Records: flow.Chunks{{Body: []byte("[]"), Records: 1}}, Received: time.UnixMilli(0).UTC()},
	} {
		receipt, err := p.Publish(t.Context(), sub)
		if err != nil || receipt.Replayed {
			t.Fatalf("publish %s: got %+v, %v", sub.ID, receipt, err)
		}
	}

	w.sources()
	revisions := map[string]uint64{}
	for _, source := range w.Sources() {
		revisions[source.Name] = source.Revision
	}
	var want []flow.Message
	for _, sub := range []*flow.Submission{submission("small", 100), submission("chunks", 400, 40<<10, 5), submission("large", 700<<10)} {
		for i, part := range chunksOf(sub) {
			m := flow.Message{
				Topic: "flow.0.record", Ordinal: i, Index: i, From: i, ID: sub.ID, Hash: sub.Hash, Body: part.Body, Encoding: flow.EncodingS2, Records: 1,
				Received: sub.Received, Subject: sub.Subject, Source: sub.Source, Revision: revisions[sub.Source], TraceParent: sub.TraceParent,
			}
			want = append(want, m)
		}
	}
	for i, seq := range []uint64{1, 2, 2, 2, 3} {
		want[i].Seq = seq
	}
	want = append(want, flow.Message{Seq: 4, Topic: "flow.0.record", ID: "bare", Body: []byte("[]"), Records: 1, Revision: revisions[""], Received: time.UnixMilli(0).UTC()})
	expect.Equal(t, "messages read back", want, w.all(0))
}

func TestAnApiRemembersWhatItHasSent(t *testing.T) {
	t.Parallel()
	for _, sizes := range [][]int{{100}, {100 << 10}, {100, 200, 300}} {
		t.Run(fmt.Sprint(sizes), func(t *testing.T) {
			w := open(t, stream.Config{})
			p := w.publisher()
			for i, want := range []bool{false, true, true} {
				got, err := p.Publish(t.Context(), submission("one", sizes...))
				fatal.When(t, err != nil || got.Replayed != want, "publish %d: got %+v, %v, want replayed %v", i, got, err, want)
				want := []flow.Place{{Stream: w.Lanes()[0].StreamID(), Seq: 1, ID: w.message(0, 1).Header.Get("Nats-Msg-Id")}}
				expect.Equal(t, "places", want, got.Places)
			}
			expect.Equal(t, "the lane holds chunks", len(sizes), len(w.all(0)))
			// Another publisher has no memory of it: the lane has it twice, and the ingester drops
			// the second one.
			other := openOn(t, w.server, stream.Config{}).publisher()
			if got, err := other.Publish(t.Context(), submission("one", sizes...)); err != nil || got.Replayed {
				t.Fatalf("publish by another process: got %+v, %v", got, err)
			}
			if got := len(w.all(0)); got != 2*len(sizes) || len(w.once(0)) != len(sizes) {
				t.Errorf("the lane holds %d chunks, %d different ones, want %d, %d", got, len(w.once(0)), 2*len(sizes), len(sizes))
			}
		})
	}
}

func TestAKeyWithAnotherBodyIsRefused(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	other := submission("one", 10, 20)
	other.Hash = "another hash"
	if _, err := p.Publish(t.Context(), submission("one", 10)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Publish(t.Context(), other); !errors.Is(err, flow.ErrKeyReused) {
		t.Errorf("got %v, want %v", err, flow.ErrKeyReused)
	}
	expect.Equal(t, "the lane holds chunks", 1, len(w.all(0)))
}

// TestTwoSourcesOfOneSubjectNeverMeet, nor do two subjects of one source. Each has its own
// requests, whatever their keys and bodies.
func TestTwoSourcesOfOneSubjectNeverMeet(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	p := w.publisher()
	of := func(source, subject, body string) *flow.Submission {
		sub := submission("one", 10)
		sub.Source, sub.Subject, sub.Hash = source, subject, body
		return sub
	}
	for i, sub := range []*flow.Submission{
		of("cluster-a", "engine", "same"), of("cluster-b", "engine", "same"), of("cluster-a", "other", "same"),
		of("cluster-c", "engine", "another"), of("engine", "cluster-a", "another"), of("cluster-", "aengine", "another"),
	} {
		for _, repeated := range []bool{false, true} {
			got, err := p.Publish(t.Context(), sub)
			if err != nil || got.Replayed != repeated {
				t.Errorf("of source %q and subject %q: got %+v, %v, want replayed %v", sub.Source, sub.Subject, got, err, repeated)
			}
		}
		expect.Equal(t, "the lane holds requests", i+1, len(w.all(0)))
	}
}

// TestAKeyThatWasNotUsedIsFree: a request that was certainly not sent leaves its key free.
func TestAKeyThatWasNotUsedIsFree(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 1 << 20})
	p := w.publisher()
	if _, err := p.Publish(t.Context(), submission("one", 2<<20)); !errors.Is(err, flow.ErrFull) {
		t.Fatalf("got %v, want %v", err, flow.ErrFull)
	}
	other := submission("one", 10)
	other.Hash = "another hash"
	if _, err := p.Publish(t.Context(), other); err != nil {
		t.Errorf("the key with another body: %v", err)
	}
}

// TestTheSamePublishedByManyAtOnce: repeats may share an entry, or arrive while the first is in
// flight. All are answered.
func TestTheSamePublishedByManyAtOnce(t *testing.T) {
	t.Parallel()
	for _, sizes := range [][]int{{100}, {64 << 10}, {100, 200, 300}} {
		t.Run(fmt.Sprint(sizes), func(t *testing.T) {
			w := open(t, stream.Config{})
			p := w.publisher()
			if _, err := p.Publish(t.Context(), submission("met", 1)); err != nil { // the source is known
				t.Fatal(err)
			}
			var mu sync.Mutex
			fresh := map[string]int{}
			var wg sync.WaitGroup
			for i := range 64 {
				wg.Go(func() {
					id := fmt.Sprintf("id-%d", i%8)
					receipt, err := p.Publish(t.Context(), submission(id, sizes...))
					if err != nil {
						t.Errorf("publish %s: %v", id, err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					if !receipt.Replayed {
						fresh[id]++
					}
				})
			}
			wg.Wait()
			expect.Equal(t, "the lane holds chunks", 1+8*len(sizes), len(w.all(0)))
			for id, n := range fresh {
				expect.Not(t, n != 1, "%s was acknowledged as new %d times", id, n)
			}
			expect.Not(t, len(fresh) != 8, "%d ids were acknowledged as new, want 8", len(fresh))
		})
	}
}

// TestAPartOfASubmissionMayBeThere: a lane with room for a part stores it; a repeat completes it
// once there is room.
func TestAPartOfASubmissionMayBeThere(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 1 << 20})
	p := w.publisher()
	if _, err := p.Publish(t.Context(), submission("fits", 300<<10, 300<<10)); err != nil {
		t.Fatal(err)
	}
	_, err := p.Publish(t.Context(), submission("does-not", 300<<10, 300<<10, 300<<10))
	fatal.When(t, !errors.Is(err, flow.ErrFull), "got %v, want %v", err, flow.ErrFull)
	expect.Equal(t, "chunks", []string{"fits", "fits.1", "does-not"}, ids(w.all(0)))
	roomier := openOn(t, w.server, stream.Config{MaxBytes: 8 << 20})
	fatal.If(t, w.Refresh(t.Context()))
	if got, err := p.Publish(t.Context(), submission("does-not", 300<<10, 300<<10, 300<<10)); err != nil || got.Replayed {
		t.Fatalf("again: got %+v, %v", got, err)
	}
	expect.Equal(t, "chunks that differ", []string{"fits", "fits.1", "does-not", "does-not.1", "does-not.2"}, ids(roomier.once(0)))
}

func TestAFullLaneSaysWhenToComeBack(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 1 << 20})
	p := w.publisher()
	var err error
	var stored int
	for i := 0; err == nil; i++ {
		if _, err = p.Publish(t.Context(), submission(fmt.Sprintf("id-%d", i), 16<<10)); err == nil {
			stored++
		}
	}
	var retry *flow.RetryError
	fatal.When(t, !errors.Is(err, flow.ErrFull) || !errors.As(err, &retry), "got %v, want %v with a RetryError", err, flow.ErrFull)
	expect.Not(t, retry.After < time.Second || retry.After > time.Minute, "retry after %v, want between a second and a minute", retry.After)
	expect.Equal(t, "messages of the lane", stored, len(w.all(0)))
	// A repeat of a stored request is acknowledged without room.
	if got, err := p.Publish(t.Context(), submission("id-0", 16<<10)); err != nil || !got.Replayed {
		t.Errorf("repeat on a full lane: got %+v, %v", got, err)
	}
}

func TestInvalidSubmissions(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	for name, c := range map[string]struct {
		sub  *flow.Submission
		want error // nil: any other
	}{
		"no id":                     {submission("", 10), nil},
		"an id with a space":        {submission("a b", 10), nil},
		"an id with a line end":     {submission("a\r\nNats-Rollup: all", 10), nil},
		"an id that is too long":    {submission(strings.Repeat("x", 257), 10), nil},
		"no chunks":                 {submission("id"), nil},
		"a chunk that is too large": {submission("id", 10, 16<<20), flow.ErrTooLarge},
		"a chunk without records":   {&flow.Submission{ID: "id", Records: flow.Chunks{{Body: []byte("[]")}}}, nil},
		"names that are too long":   {&flow.Submission{ID: "id", Source: strings.Repeat("x", 40<<10), Records: flow.Chunks{{Body: []byte("[]"), Records: 1}}}, flow.ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := p.Publish(t.Context(), c.sub)
			if err == nil || (c.want != nil && !errors.Is(err, c.want)) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
	if got := w.all(0); len(got) > 0 {
		t.Errorf("the lane holds %d messages, want none", len(got))
	}
}

func TestNATSAwayIsSaidWithinTwoSeconds(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	p := w.publisher()
	if _, err := p.Publish(t.Context(), submission("before", 10)); err != nil {
		t.Fatal(err)
	}
	w.server.Stop()
	for _, sizes := range [][]int{{10}, {100 << 10}, {10, 10}} {
		begun := time.Now()
		_, err := p.Publish(t.Context(), submission("while-away", sizes...))
		var retry *flow.RetryError
		expect.Not(t, !errors.Is(err, flow.ErrUnavailable) || !errors.As(err, &retry) || retry.After <= 0, "%v: got %v, want %v with a RetryError", sizes, err, flow.ErrUnavailable)
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("%v: it took %v, want at most 2s", sizes, took)
		}
	}
	if err := p.Check(); !errors.Is(err, flow.ErrUnavailable) {
		t.Errorf("Check: got %v while nothing becomes durable, want %v", err, flow.ErrUnavailable)
	}
	w.server.Restart()
	deadline := time.Now().Add(10 * time.Second)
	for {
		_, err := p.Publish(t.Context(), submission("after", 10))
		if err == nil {
			break
		}
		fatal.When(t, time.Now().After(deadline), "still unavailable: %v", err)
	}
	expect.Equal(t, "messages", []string{"before", "after"}, ids(w.once(0)))
	if err := p.Check(); err != nil {
		t.Errorf("Check: got %v after a success", err)
	}
}

func TestADeniedPublishIsUnavailable(t *testing.T) {
	w := open(t, stream.Config{})
	fatal.If(t, w.nc.Flush())
	// A stream that was sealed by hand refuses everything.
	js, err := w.nc.JetStream()
	fatal.If(t, err)
	info, err := js.StreamInfo("FLOW_0")
	fatal.If(t, err)
	cfg := info.Config
	cfg.Sealed = true
	cfg.Duplicates = 0
	if _, err := js.UpdateStream(&cfg); err != nil {
		var api *nats.APIError
		if errors.As(err, &api) {
			t.Fatalf("seal: %v (%d)", err, api.ErrorCode)
		}
		t.Fatal(err)
	}
	_, err = w.publisher().Publish(t.Context(), submission("one", 10))
	expect.Not(t, !errors.Is(err, flow.ErrUnavailable), "got %v, want %v", err, flow.ErrUnavailable)
}
