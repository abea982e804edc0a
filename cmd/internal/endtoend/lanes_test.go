package endtoend

import (
	"fmt"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/cmd/internal/parts"
)

// shares waits until the ingesters hold so many lanes each, in any order, and
// returns how long it took and who holds how many.
func (s *stack) shares(limit time.Duration, want []int, ops ...string) (took time.Duration, held []int) {
	s.t.Helper()
	began := time.Now()
	eventually(s.t, limit, func() error {
		held = nil
		for _, addr := range ops {
			held = append(held, int(s.metric(addr, "sluice_stream_leases_held")))
		}
		if got := slices.Sorted(slices.Values(held)); !slices.Equal(got, want) {
			return fmt.Errorf("the ingesters hold %v lanes, want %v", held, want)
		}
		return nil
	})
	return time.Since(began), held
}

// TestLanesUnderLoad adds a lane while records flow, and takes its owners away
// in every way. Every record is stored once.
func TestLanesUnderLoad(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.startNATS()
	s.startEngine()
	api := s.startAPI()
	ops := []string{parts.Address(), parts.Address()}
	ingesters := []*process{s.startIngesterAt(ops[0]), s.startIngesterAt(ops[1])}
	s.waitReady(api, append([]string{s.ops}, ops...)...)

	s.shares(10*time.Second, []int{0, 1}, ops...)
	const seconds, rate = 55, 400
	acknowledged := s.loading("--records", fmt.Sprint(seconds*rate), "--rate", fmt.Sprint(rate), "--batch", "10", "--seed", "1")
	s.sluice(0, "lanes", "add", "--nats", "nats://"+s.nats)
	took, _ := s.shares(15*time.Second, []int{1, 1}, ops...)
	t.Logf("two lanes are shared %v after one was added", took)

	t.Run("a killed owner is replaced within 15 s", func(t *testing.T) {
		ingesters[0].kill()
		took, _ := s.shares(15*time.Second, []int{2}, ops[1])
		t.Logf("taken over after %v", took)
		ingesters[0] = s.startIngesterAt(ops[0])
		s.shares(15*time.Second, []int{1, 1}, ops...)
	})
	t.Run("a stopped owner is replaced at once", func(t *testing.T) {
		began := time.Now()
		if code := ingesters[0].stop(); code != 0 {
			t.Errorf("stopped with exit %d", code)
		}
		stopped := time.Since(began)
		took, _ := s.shares(3*time.Second, []int{2}, ops[1])
		t.Logf("stopped in %v, taken over %v after", stopped, took)
		ingesters[0] = s.startIngesterAt(ops[0])
		s.shares(15*time.Second, []int{1, 1}, ops...)
	})
	t.Run("an owner that stood still does no harm", func(t *testing.T) {
		s.eventuallyQuery(40*time.Second, "SELECT uniqExact(lane) FROM flow.records", "2") // the new lane takes records
		ingesters[0].signal(syscall.SIGSTOP)
		took, _ := s.shares(15*time.Second, []int{2}, ops[1])
		t.Logf("taken over after %v", took)
		time.Sleep(time.Second) // the other one works on the lane
		ingesters[0].signal(syscall.SIGCONT)
		s.shares(15*time.Second, []int{1, 1}, ops...)
	})
	acknowledged()
	s.stored(seconds * rate)
	s.noDeadLetters()
	if got, err := s.query("SELECT uniqExact(lane), min(n) > 1000 FROM (SELECT lane, count() AS n FROM flow.records GROUP BY lane)"); err != nil || got != "2\t1" {
		t.Errorf("lanes with records, and each has more than a few: got %s (%v), want 2 and 1", got, err)
	}
}

// jetStream is the administration of the streams, past Sluice.
func (s *stack) jetStream() nats.JetStreamContext {
	s.t.Helper()
	nc, err := nats.Connect("nats://" + s.nats)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	js, err := nc.JetStream()
	if err != nil {
		s.t.Fatal(err)
	}
	return js
}

// TestARecreatedStreamHalts: somebody deletes the stream of a lane while
// nothing runs, and it is made again.
func TestARecreatedStreamHalts(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	_, _, api, ingester := s.apart()
	s.load("--records", "1000", "--batch", "100", "--seed", "1")
	s.stored(1000)
	for _, p := range []*process{api, ingester} {
		if code := p.stop(); code != 0 {
			t.Fatalf("%s stopped with exit %d", p.name, code)
		}
	}
	if err := s.jetStream().DeleteStream("FLOW_0"); err != nil {
		t.Fatal(err)
	}
	api = s.startAPI()
	s.waitReady(api, s.ops)
	s.load("--records", "1000", "--batch", "50", "--seed", "2") // durable in the new stream
	ingester = s.startIngester()
	s.halted(ingester, "the stream was recreated", "sluice lanes reset")
	if got, err := s.query("SELECT count() FROM flow.records"); err != nil || got != "1000" {
		t.Errorf("%s records (%v), want the 1000 from before: it went on", got, err)
	}
	s.sluice(0, "lanes", "reset", "--lane", "0", "--done", "0", "--yes", "--nats", "nats://"+s.nats)
	s.stored(2000)
	s.waitReady(ingester, s.ingesterOps)
}

// TestATruncatedTableIsReported: nothing can bring the records back but a
// backup or the stream, and the operator hears of it.
func TestATruncatedTableIsReported(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	_, _, _, ingester := s.apart()
	s.load("--records", "1000", "--batch", "100", "--seed", "1")
	s.stored(1000)
	if code := ingester.stop(); code != 0 {
		t.Fatalf("stopped with exit %d", code)
	}
	s.exec("TRUNCATE TABLE flow.records")
	ingester = s.startIngester()
	eventually(t, 20*time.Second, func() error {
		if missing := s.metric(s.ingesterOps, `sluice_ingest_table_missing_messages{lane="0"}`); missing != 10 {
			return fmt.Errorf("%v messages are missing by the metric, want 10", missing)
		}
		return wantText(ingester.text(), "the table has lost records")
	})
	// What is new goes in: nothing more is lost by that.
	s.load("--records", "500", "--batch", "100", "--seed", "2")
	s.eventuallyQuery(20*time.Second, "SELECT count(), uniqExact(id) FROM flow.records", "500\t500")
	if status, page := s.page(s.ingesterOps, "/readyz"); status != http.StatusOK {
		t.Errorf("/readyz answers %d %s", status, page)
	}
}
