package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/change"
	"sluice/pkg/dial"
	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/flow"
	"sluice/pkg/lease"
	"sluice/pkg/state"
	"sluice/pkg/stream"
)

// connectAs connects as one of the users of nats.conf, as the programs do.
func connectAs(t *testing.T, srv *embedded.Server, name string) (nc *nats.Conn, refused chan error) {
	t.Helper()
	refused = make(chan error, 64)
	c := dial.Config{URL: srv.ClientURL(), Name: name, User: name, Password: passwordOf(name)}
	options := append(c.Options(slog.New(slog.DiscardHandler), dial.NewMetrics(prometheus.NewRegistry())),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	nc, err := nats.Connect(c.URL, options...)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	t.Cleanup(nc.Close)
	return nc, refused
}

// openAs opens the streams as one of the users.
func openAs(t *testing.T, ctx context.Context, srv *embedded.Server, name string) *stream.Stream {
	t.Helper()
	nc, _ := connectAs(t, srv, name)
	opened, err := stream.Open(ctx, nc, stream.Config{Monitors: []string{srv.MonitorURL()}}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatalf("open the streams as %s: %v", name, err)
	}
	return opened
}

// TestUsersOfNATSDoTheirWork runs nats.conf and does what the api, the ingester
// and the operator's commands do, each as its user.
func TestUsersOfNATSDoTheirWork(t *testing.T) {
	natsPasswords(t, nil)
	srv := startNATS(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	asOperator := openAs(t, ctx, srv, "operator") // makes them
	asAPI, asIngester := openAs(t, ctx, srv, "api"), openAs(t, ctx, srv, "ingester")
	ok := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}

	publisher := stream.NewPublisher(asAPI)
	_, err := publisher.Publish(ctx, &flow.Submission{
		ID: "engine.1", Hash: "00", Subject: "engine", Source: "engine", Received: time.Now(),
		Records: flow.Chunks{{Body: []byte(`[{"id":"1-1"}]`), Records: 1}},
	})
	ok("the api publishes", err)
	wanted := &change.Change{
		Kind: change.UserPatched, Target: change.Target{User: "ann"}, By: "ann", At: time.Now().UTC(),
		Members: []string{"name"}, Body: json.RawMessage(`{"name":"Ann"}`), ID: "r-1",
	}
	_, _, err = publisher.PublishChange(ctx, wanted)
	ok("the api publishes a change", err)
	_, err = asAPI.LastChange(ctx, wanted.Target)
	ok("the api reads the last change", err)
	_, err = state.New(asAPI.State).Entry(ctx, wanted.Target)
	ok("the api reads the state", err)

	reader, err := asIngester.OpenLane(ctx, 0, 1, 0)
	ok("the ingester reads", err)
	defer reader.Close()
	msg, err := reader.Next(ctx)
	ok("the ingester reads a message", err)
	for index := range 3 {
		ok("the ingester sets aside", stream.NewDeadLetters(asIngester).SetAside(ctx, flow.Dead{Message: msg.Messages[0], Index: index, Code: "c", Reason: "r"}))
	}
	positions := stream.NewLaneStates(asIngester)
	at, err := positions.Read(ctx, 0)
	ok("the ingester reads its position", err)
	at.Done = msg.Seq
	_, err = positions.CompareAndSwap(ctx, 0, at)
	ok("the ingester moves its position", err)
	ok("the ingester looks what to purge", stream.NewPurger(asIngester, stream.PurgeConfig{}).Purge(ctx)) // nothing is old enough
	nc, _ := connectAs(t, srv, "ingester")
	js, err := jetstream.New(nc)
	ok("the ingester asks JetStream", err)
	lane, err := js.Stream(ctx, stream.LaneName(0))
	ok("the ingester looks at the lane", err)
	ok("the ingester purges", lane.Purge(ctx, jetstream.WithPurgeSequence(1)))
	held, done := make(chan int, 1), make(chan error, 1)
	leasing, stop := context.WithCancel(ctx)
	go func() {
		done <- lease.New(lease.Config{Instance: "one", Bucket: asIngester.Leases, TTL: stream.LeaseTTL, Lanes: asIngester.LaneNumbers}, slog.New(slog.DiscardHandler), prometheus.NewRegistry()).Run(leasing, func(ctx context.Context, lane int) error {
			held <- lane
			<-ctx.Done()
			return nil
		})
	}()
	select {
	case <-held:
	case <-ctx.Done():
		t.Fatal("the ingester gets no lease")
	}
	stop()
	ok("the ingester lets go of its lease", <-done)
	bucket, err := asIngester.State()
	ok("the ingester opens the state", err)
	_, err = bucket.Put(ctx, "user.x", []byte("{}"))
	ok("the ingester keeps the state", err)

	asConsole := openAs(t, ctx, srv, "console")
	_, err = asConsole.Standings(ctx)
	ok("the console looks at the lanes", err)
	shown := stream.NewDeadLetters(asConsole).As("ann")
	for letter, err := range shown.List(ctx, stream.DeadFilter{}) {
		ok("the console lists dead letters", err)
		switch letter.Index {
		case 0:
			_, err = shown.Replay(ctx, stream.NewPublisher(asConsole), letter)
			ok("the console replays", err)
		case 1:
			ok("the console drops", shown.Drop(ctx, letter))
		}
	}
	for _, err := range shown.Settled(ctx) {
		ok("the console reads what became of them", err)
	}

	letters := stream.NewDeadLetters(asOperator)
	for letter, err := range letters.List(ctx, stream.DeadFilter{}) {
		ok("the operator lists dead letters", err)
		_, err = letters.Replay(ctx, stream.NewPublisher(asOperator), letter)
		ok("the operator replays", err)
	}
	if n, err := letters.Room(ctx); err != nil || n.Letters != 0 {
		t.Errorf("%d dead letters are left: %v", n.Letters, err)
	}
	_, err = asOperator.AddLane(ctx)
	ok("the operator adds a lane", err)
}

// TestUsersOfNATSDoNoOtherWork: what nats.conf does not grant is refused.
func TestUsersOfNATSDoNoOtherWork(t *testing.T) {
	natsPasswords(t, nil)
	srv := startNATS(t)
	for _, options := range [][]nats.Option{nil, {nats.UserInfo("api", passwordOf("ingester"))}, {nats.UserInfo("operator", "")}, {nats.UserInfo("sluice", passwordOf("api"))}} {
		if nc, err := nats.Connect(srv.ClientURL(), options...); err == nil {
			nc.Close()
			t.Error("the server accepts a client without a password")
		}
	}
	no := map[string][]string{
		"api": {
			"flow.dead.x", "flow.settled.x", "flow.replay.x", "flow.0.move", "$KV.flow_lanes.lane.0", "$KV.flow_state.user.x", "$KV.flow_leases.lane.0",
			"$JS.API.STREAM.PURGE.FLOW_0", "$JS.API.STREAM.DELETE.FLOW_0", "$JS.API.STREAM.CREATE.MINE", "$JS.API.STREAM.UPDATE.FLOW_0",
			"$JS.API.STREAM.MSG.DELETE.FLOW_DEAD", "$JS.API.CONSUMER.DELETE.FLOW_0.x", "elsewhere", "_INBOX_ingester.x",
		},
		"ingester": {
			"flow.0.record", "flow.0.change.user.x", "flow.replay.x", "flow.0.move", "$KV.flow_sources.s", "$JS.API.STREAM.DELETE.FLOW_0",
			"$JS.API.STREAM.CREATE.MINE", "$JS.API.STREAM.UPDATE.FLOW_0", "$JS.API.STREAM.MSG.DELETE.FLOW_DEAD", "$JS.API.CONSUMER.DELETE.FLOW_0.x", "elsewhere", "_INBOX_api.x",
		},
		"console": {
			"flow.dead.x", "flow.0.move", "$KV.flow_lanes.lane.0", "$KV.flow_state.user.x", "$KV.flow_leases.lane.0", "$JS.API.STREAM.PURGE.FLOW_0",
			"$JS.API.STREAM.DELETE.FLOW_0", "$JS.API.STREAM.CREATE.MINE", "$JS.API.STREAM.UPDATE.FLOW_0", "$JS.API.STREAM.MSG.DELETE.FLOW_0", "$JS.API.CONSUMER.DELETE.FLOW_0.x", "elsewhere", "_INBOX_api.x",
		},
	}
	for user, subjects := range no {
		nc, refused := connectAs(t, srv, user)
		tried := len(subjects)
		for _, subject := range subjects {
			if err := nc.Publish(subject, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		for _, subject := range []string{"_INBOX_operator.>", "flow.>", ">"} {
			subjects, tried = append(subjects, subject), tried+1
			if _, err := nc.SubscribeSync(subject); err != nil {
				t.Fatal(err)
			}
		}
		var said strings.Builder
		for range tried {
			select {
			case err := <-refused:
				fmt.Fprintln(&said, err)
			case <-time.After(5 * time.Second):
			}
		}
		for _, subject := range subjects {
			if !strings.Contains(said.String(), fmt.Sprintf("%q", subject)) {
				t.Errorf("%s may publish or subscribe to %s; refused was:\n%s", user, subject, &said)
			}
		}
	}
}

// TestNobodyDeletesTheIngestersConsumers: the api and the console may make consumers to
// read by, and delete none, also with the name of one of the ingester's.
func TestNobodyDeletesTheIngestersConsumers(t *testing.T) {
	natsPasswords(t, nil)
	srv := startNATS(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	openAs(t, ctx, srv, "operator") // makes the streams
	reader, err := openAs(t, ctx, srv, "ingester").OpenLane(ctx, 0, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	nc, _ := connectAs(t, srv, "operator")
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	lane, err := js.Stream(ctx, stream.LaneName(0))
	if err != nil {
		t.Fatal(err)
	}
	consumers := func() (names []string) {
		list := lane.ConsumerNames(ctx)
		for name := range list.Name() {
			names = append(names, name)
		}
		if err := list.Err(); err != nil {
			t.Fatal(err)
		}
		return names
	}
	before := consumers()
	if len(before) == 0 {
		t.Fatal("the ingester reads without a consumer")
	}
	for _, user := range []string{"api", "console", "ingester"} {
		nc, refused := connectAs(t, srv, user)
		for _, name := range before {
			if err := nc.Publish("$JS.API.CONSUMER.DELETE.FLOW_0."+name, nil); err != nil {
				t.Fatal(err)
			}
			select {
			case <-refused:
			case <-time.After(5 * time.Second):
				t.Errorf("%s may delete consumer %s", user, name)
			}
		}
	}
	if now := consumers(); !slices.Equal(now, before) {
		t.Errorf("consumers %v are left of %v", now, before)
	}
}
