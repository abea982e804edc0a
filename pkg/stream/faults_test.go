package stream_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/dial"
	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// TestEveryAnswerOfNATSHasItsVerdict is the table of a submitter's answers.
func TestEveryAnswerOfNATSHasItsVerdict(t *testing.T) {
	api := func(code jetstream.ErrorCode, text string) error {
		return &jetstream.APIError{ErrorCode: code, Description: text}
	}
	for name, c := range map[string]struct {
		err     error
		verdict string
		answer  error
		after   time.Duration // 0: none is known
	}{
		"full by bytes":              {api(10077, "maximum bytes exceeded"), "give up", flow.ErrFull, 0},
		"full by messages":           {api(10077, "maximum messages exceeded"), "give up", flow.ErrFull, 0},
		"the store failed":           {api(10077, "write failed"), "give up", flow.ErrUnavailable, 5 * time.Second},
		"the queue is full":          {api(10167, ""), "give up", flow.ErrBusy, time.Second},
		"too large for the stream":   {api(10054, ""), "give up", flow.ErrTooLarge, 0},
		"too large for the server":   {nats.ErrMaxPayload, "give up", flow.ErrTooLarge, 0},
		"an id in process":           {api(10158, ""), "again", flow.ErrUnavailable, time.Second},
		"no leader":                  {api(10009, ""), "unknown", flow.ErrUnavailable, 5 * time.Second},
		"the cluster is away":        {api(10008, ""), "unknown", flow.ErrUnavailable, 5 * time.Second},
		"replicas disagree":          {api(10063, ""), "unknown", flow.ErrUnavailable, 5 * time.Second},
		"a subject is not ready":     {api(10163, ""), "unknown", flow.ErrUnavailable, 5 * time.Second},
		"the stream is offline":      {api(10118, ""), "unknown", flow.ErrUnavailable, 5 * time.Second},
		"offline with a reason":      {api(10194, ""), "unknown", flow.ErrUnavailable, 5 * time.Second},
		"no room on the server":      {api(10047, ""), "give up", flow.ErrUnavailable, 10 * time.Second},
		"no memory on the server":    {api(10028, ""), "give up", flow.ErrUnavailable, 10 * time.Second},
		"no resources on the server": {api(10023, ""), "give up", flow.ErrUnavailable, 10 * time.Second},
		"no room in the account":     {api(10002, ""), "give up", flow.ErrUnavailable, 10 * time.Second},
		"sealed":                     {api(10109, ""), "give up", flow.ErrUnavailable, 30 * time.Second},
		"another stream":             {api(10060, ""), "give up", flow.ErrUnavailable, 30 * time.Second},
		"no server answers":          {nats.ErrNoResponders, "unreached", flow.ErrUnavailable, 2 * time.Second},
		"away, nothing sent":         {nats.ErrReconnectBufExceeded, "unreached", flow.ErrUnavailable, 2 * time.Second},
		"away":                       {nats.ErrConnectionReconnecting, "unreached", flow.ErrUnavailable, 2 * time.Second},
		"closed":                     {nats.ErrConnectionClosed, "give up", flow.ErrUnavailable, 5 * time.Second},
		"no answer in time":          {context.DeadlineExceeded, "unknown", flow.ErrUnavailable, 2 * time.Second},
		"no answer in NATS's time":   {nats.ErrTimeout, "unknown", flow.ErrUnavailable, 2 * time.Second},
		"lost while waiting":         {stream.ErrDisconnected, "cut", flow.ErrUnavailable, 2 * time.Second},
		"lost while writing":         {&net.OpError{Op: "write", Err: net.ErrClosed}, "cut", flow.ErrUnavailable, 2 * time.Second},
		"its source has moved":       {stream.ErrMoved, "give up", flow.ErrHeld, time.Second},
		"it is void":                 {stream.ErrVoid, "give up", flow.ErrUnavailable, time.Second},
		"anything else":              {errors.New("?"), "unknown", flow.ErrUnavailable, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			verdict, answer := stream.Judge(fmt.Errorf("wrapped: %w", c.err), false, false)
			if verdict != c.verdict || !errors.Is(answer, c.answer) {
				t.Errorf("got %s, %v, want %s, %v", verdict, answer, c.verdict, c.answer)
			}
			var retry *flow.RetryError
			expect.Not(t, errors.As(answer, &retry) != (c.after > 0) || (retry != nil && retry.After != c.after), "got %+v, want to come back after %v", retry, c.after)
			// Whatever the error of this attempt, the lane may hold an earlier one.
			if same, answer := stream.Judge(c.err, false, true); same != c.verdict || !errors.Is(answer, flow.ErrUnavailable) {
				t.Errorf("after an attempt without an answer: got %s, %v, want %s, %v", same, answer, c.verdict, flow.ErrUnavailable)
			}
			if _, answer := stream.Judge(c.err, true, false); (verdict == "unknown" || verdict == "cut") && !errors.Is(answer, flow.ErrUnavailable) {
				t.Errorf("while it is in flight: got %v, want %v", answer, flow.ErrUnavailable)
			}
		})
	}
}

func TestAFrozenServer(t *testing.T) {
	t.Parallel()
	p := natstest.StartProcess(t)
	w := openAt(t, p.URL, stream.Config{})
	pub := w.publisher()
	if _, err := pub.Publish(t.Context(), submission("before", 10)); err != nil {
		t.Fatal(err)
	}
	p.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for i, sizes := range [][]int{{10}, {10}, {100 << 10}, {10, 20}} {
		wg.Go(func() {
			begun := time.Now()
			_, err := pub.Publish(ctx, submission(fmt.Sprintf("id-%d", i), sizes...))
			expect.Not(t, !errors.Is(err, flow.ErrUnavailable) && !errors.Is(err, flow.ErrBusy), "%v: got %v, want %v", sizes, err, flow.ErrUnavailable)
			if took := time.Since(begun); took > 4*time.Second {
				t.Errorf("%v: it took %v to give up after 2s", sizes, took)
			}
		})
	}
	wg.Wait()
	p.Resume()
	for i, sizes := range [][]int{{10}, {10}, {100 << 10}, {10, 20}} {
		if _, err := pub.Publish(t.Context(), submission(fmt.Sprintf("id-%d", i), sizes...)); err != nil {
			t.Errorf("%v, again: %v", sizes, err)
		}
	}
	w.hold(6)
}

// TestWithoutTheRightToPublish: NATS does not answer, and reports the denial as an asynchronous
// error.
func TestWithoutTheRightToPublish(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conf := filepath.Join(dir, "nats.conf")
	text := fmt.Sprintf(`listen: "127.0.0.1:-1"
jetstream { store_dir: %q, sync_interval: always }
authorization { users: [
  {user: admin, password: a}
  {user: api, password: b, permissions: {publish: {allow: ["$JS.API.>", "$KV.>"]}, subscribe: ["_INBOX_api.>"]}}
] }`, dir)
	fatal.If(t, os.WriteFile(conf, []byte(text), 0o600))
	server := natstest.StartWith(t, embedded.Config{ConfigFile: conf, Listen: "127.0.0.1:0"})
	reg := prometheus.NewRegistry()
	url := "nats://api:b@" + server.URL[len("nats://"):]
	nc, err := dial.Connect(dial.Config{URL: url, Name: "api"}, quiet(), reg)
	fatal.If(t, err)
	defer nc.Close()
	s, err := stream.Open(t.Context(), nc, stream.Config{MaxBytes: 1 << 20}, quiet(), reg)
	fatal.If(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := stream.NewPublisher(s).Publish(ctx, submission("one", 10)); !errors.Is(err, flow.ErrUnavailable) {
		t.Errorf("got %v, want %v", err, flow.ErrUnavailable)
	}
	if got := value(t, reg, "sluice_stream_connection_errors_total", nil); got < 1 {
		t.Errorf("%v errors of the connection were counted, want one at least", got)
	}
}

func TestEveryCallReportsThatNATSIsDown(t *testing.T) {
	w := open(t, stream.Config{})
	w.publish(w.publisher(), "id", 1)
	pos := w.swapTo(0, 1)
	w.server.Stop()
	for w.nc.IsConnected() {
		time.Sleep(time.Millisecond)
	}
	positions, letters := stream.NewLaneStates(w.Stream), stream.NewDeadLetters(w.Stream)
	ctx := t.Context()
	for name, f := range map[string]func() error{
		"read a position":   func() error { _, err := positions.Read(ctx, 0); return err },
		"swap a position":   func() error { _, err := positions.CompareAndSwap(ctx, 0, pos); return err },
		"identity":          func() error { _, err := positions.StreamID(ctx, 0); return err },
		"open a lane":       func() error { _, err := w.OpenLane(ctx, 0, 1, 0); return err },
		"dead-letter":       func() error { return letters.Publish(ctx, dead(1)) },
		"get a dead letter": func() error { _, _, err := letters.Get(ctx, 1); return err },
		"count the dead":    func() error { _, err := letters.Room(ctx); return err },
		"drop":              func() error { return letters.Drop(ctx, stream.DeadLetter{Number: 1}) },
	} {
		t.Run(name, func(t *testing.T) {
			begun := time.Now()
			if err := f(); !errors.Is(err, flow.ErrUnavailable) {
				t.Errorf("got %v, want %v", err, flow.ErrUnavailable)
			}
			if took := time.Since(begun); took > 2*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}
