package ingest_test

import (
	"fmt"
	"testing"
	"time"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// TestOneKeyOverTwoApis: a request whose records have no identity of their own is
// sent through two apis, cut in two ways, before and after another ingester has
// taken the lane, and all is purged in between that may be.
func TestOneKeyOverTwoApis(t *testing.T) {
	t.Parallel()
	s := &site{t: t, nats: natstest.Start(t), engine: clickhousetest.Start(t)}
	fatal.If(t, s.warehouse().Migrate(t.Context()))
	opened := s.open("api")
	send := func(id string, pieces ...int) {
		t.Helper()
		sub := &flow.Submission{ID: id, Hash: "hash of " + id, Subject: "engine", Received: time.Now()}
		chunks := flow.Chunks{}
		for i, records := 0, 0; i < len(pieces); i++ {
			body := []byte{'['}
			for r := range pieces[i] {
				body = fmt.Appendf(body, `{"key":%d},`, records+r)
			}
			body[len(body)-1] = ']'
			records += pieces[i]
			chunks = append(chunks, flow.Chunk{Body: body, Records: pieces[i]})
		}
		sub.Records = chunks
		// An api of its own, which remembers nothing.
		if _, err := stream.NewPublisher(opened).Publish(t.Context(), sub); err != nil {
			t.Fatal(err)
		}
	}
	stored := func() {
		t.Helper()
		for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			lag, err := opened.Lag(t.Context())
			if err == nil && lag[0].Messages == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("not done: %+v, %v", lag, err)
			}
		}
	}
	stop := s.ingester("a")
	send("one", 2, 3)
	send("one", 5)
	send("two", 1)
	stored()
	stop()
	fatal.If(t, stream.NewPurger(opened, stream.PurgeConfig{History: time.Nanosecond}).Purge(t.Context()))
	send("one", 4, 1)
	send("three", 2)
	stop = s.ingester("b")
	send("two", 1)
	send("three", 1, 1)
	stored()
	stop()
	at, err := stream.NewLaneStates(opened).Read(t.Context(), 0)
	fatal.If(t, err)
	if want := (flow.Totals{Read: 21, Stored: 8, Deduplicated: 13}); at.Totals != want {
		t.Errorf("totals are %+v, want %+v", at.Totals, want)
	}
	if got := clickhousetest.Exec(t, s.engine, "SELECT count(), uniqExact(key, identity) FROM flow.records"); got != "8\t8\n" {
		t.Errorf("the table has %s records, different ones, want 8 of 8", got)
	}
}
