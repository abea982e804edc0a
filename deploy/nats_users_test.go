package deploy_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/dial"
	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// connectAs connects as a user of nats.conf, with the options of the programs.
func connectAs(t *testing.T, srv *embedded.Server, name string) (nc *nats.Conn, refused chan error) {
	t.Helper()
	refused = make(chan error, 64)
	c := dial.Config{URL: srv.ClientURL(), Name: name, User: name, Password: passwordOf(name)}
	options := append(c.Options(slog.New(slog.DiscardHandler), dial.NewMetrics(prometheus.NewRegistry())),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	nc, err := nats.Connect(c.URL, options...)
	fatal.When(t, err != nil, "%s: %v", name, err)
	t.Cleanup(nc.Close)
	return nc, refused
}

// TestUsersOfNATSDoNoOtherWork: the server rejects everything that nats.conf does not grant.
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
			fatal.If(t, nc.Publish(subject, []byte("x")))
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
			expect.Not(t, !strings.Contains(said.String(), fmt.Sprintf("%q", subject)), "%s may publish or subscribe to %s; refused was:\n%s", user, subject, &said)
		}
	}
}
