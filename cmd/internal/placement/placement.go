// Package placement says which servers of a NATS cluster keep the streams of an
// installation: how many copies of each there are, and where. NATS copies while
// records flow; what is asked for here is waited for until every copy has all that its
// leader has. A server that runs alone cannot become one of several with what it
// holds: Carry copies that from one NATS to another.
package placement

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/cmd/internal/snapshot"
	"sluice/pkg/stream"
)

// Placement moves the streams of one installation. Its connection may do
// everything, as the operator's may.
type Placement struct {
	nc    *nats.Conn
	js    jetstream.JetStream
	watch Watch
}

// Watch is told how far it is.
type Watch interface {
	// Waiting says what a stream still waits for, several times a second.
	Waiting(stream, reason string)

	// Done says where a stream is now.
	Done(Copies)
}

// Copies is where a stream is.
type Copies struct {
	Stream   string
	Leader   string   // the server that leads, empty when there is none
	Servers  []string // of all copies, the leader's included, in order
	Messages uint64
	Bytes    uint64
	Problem  string // what its copies lack, empty when nothing
}

// buckets are the streams of the installation whose names do not begin as those
// of lanes and dead letters do.
var buckets = []string{
	"KV_" + stream.StateBucket, "KV_" + stream.LaneBucket, "KV_" + stream.SourceBucket, "KV_" + stream.LeaseBucket,
}

// New works over a connection.
func New(nc *nats.Conn, watch Watch) (*Placement, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("JetStream: %w", err)
	}
	return &Placement{nc: nc, js: js, watch: watch}, nil
}

// List is where every stream is.
func (p *Placement) List(ctx context.Context) ([]Copies, error) {
	names, err := p.names(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Copies, 0, len(names))
	for _, name := range names {
		info, err := p.info(ctx, name)
		switch {
		case err == nil:
			all = append(all, copies(info))
		case passes(err):
			all = append(all, Copies{Stream: name, Problem: "no server answers for it"})
		default:
			return nil, err
		}
	}
	return all, nil
}

// Replicas makes every stream be held by n servers.
func (p *Placement) Replicas(ctx context.Context, n int) error {
	return p.each(ctx, nil, func(info *jetstream.StreamInfo) error {
		if info.Config.Replicas == n {
			return nil
		}
		cfg := info.Config
		cfg.Replicas = n
		return p.update(ctx, cfg, fmt.Sprintf("%d servers", n))
	}, func(info *jetstream.StreamInfo) string { return incomplete(info, n) })
}

// To makes streams be held by servers that have all of these tags; by any when
// there are none.
func (p *Placement) To(ctx context.Context, tags []string, lanes []int) error {
	return p.each(ctx, lanes, func(info *jetstream.StreamInfo) error {
		cfg := info.Config
		var have []string
		if cfg.Placement != nil {
			have = cfg.Placement.Tags
		}
		if slices.Equal(have, tags) {
			return nil
		}
		cfg.Placement = nil
		if len(tags) > 0 {
			cfg.Placement = &jetstream.Placement{Tags: tags}
		}
		return p.update(ctx, cfg, "servers with the tags "+strings.Join(tags, ", "))
	}, complete)
}

// Off makes streams be held by other servers than this one.
func (p *Placement) Off(ctx context.Context, server string, lanes []int) error {
	held := func(info *jetstream.StreamInfo) bool { return slices.Contains(copies(info).Servers, server) }
	if err := p.known(ctx, server); err != nil {
		return err
	}
	return p.each(ctx, lanes, func(info *jetstream.StreamInfo) error {
		if !held(info) {
			return nil
		}
		err := p.ask(ctx, "$JS.API.STREAM.PEER.EVACUATE."+info.Config.Name, map[string]any{"peer": server})
		var api *jetstream.APIError
		if errors.As(err, &api) && api.ErrorCode == codeNoOtherPeer {
			return fmt.Errorf("take stream %s off %s: no other server can have it: add one first: %w", info.Config.Name, server, err)
		}
		if err != nil {
			return fmt.Errorf("take stream %s off %s: %w", info.Config.Name, server, err)
		}
		return nil
	}, func(info *jetstream.StreamInfo) string {
		if held(info) {
			return "it is still on " + server
		}
		return complete(info)
	})
}

// known fails when nothing is on a server: NATS says of no other one that it is there.
func (p *Placement) known(ctx context.Context, server string) error {
	all, err := p.List(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(c Copies) bool { return slices.Contains(c.Servers, server) }) {
		return fmt.Errorf("there is nothing on a server %s", server)
	}
	return nil
}

// Lead makes a server the leader of the streams that it holds.
func (p *Placement) Lead(ctx context.Context, server string, lanes []int) error {
	if err := p.known(ctx, server); err != nil {
		return err
	}
	return p.each(ctx, lanes, func(info *jetstream.StreamInfo) error {
		if !slices.Contains(copies(info).Servers, server) || info.Cluster.Leader == server {
			return nil
		}
		err := p.ask(ctx, "$JS.API.STREAM.LEADER.STEPDOWN."+info.Config.Name, map[string]any{"placement": map[string]any{"preferred": server}})
		if err != nil {
			return fmt.Errorf("make %s the leader of stream %s: %w", server, info.Config.Name, err)
		}
		return nil
	}, func(info *jetstream.StreamInfo) string {
		if slices.Contains(copies(info).Servers, server) && info.Cluster.Leader != server {
			return server + " does not lead it yet"
		}
		return ""
	})
}

// errAlone says why nothing can be moved.
var errAlone = errors.New("this NATS server runs alone, and cannot become one of several with what it holds: see docs/clusters.md")

// each does something to every stream, or to those of some lanes, and waits until
// nothing is left to wait for: for those that hold little at once, for the others one
// after the other, so that one copy at a time takes room on the wire. A stream that
// was begun by a run that was interrupted is waited for too.
func (p *Placement) each(ctx context.Context, lanes []int, do func(*jetstream.StreamInfo) error, left func(*jetstream.StreamInfo) string) error {
	if p.nc.ConnectedClusterName() == "" {
		return errAlone
	}
	names, err := p.names(ctx)
	if err != nil {
		return err
	}
	if names, err = only(names, lanes); err != nil {
		return err
	}
	little, large := []string{}, [][]string{}
	for _, name := range names {
		info, err := p.leading(ctx, name)
		if err != nil {
			return err
		}
		if info.State.Bytes < littleBytes {
			little = append(little, name)
		} else {
			large = append(large, []string{name})
		}
	}
	for _, some := range append([][]string{little}, large...) {
		for _, name := range some {
			err := p.again(ctx, name, func() error {
				info, err := p.leading(ctx, name)
				if err != nil {
					return err
				}
				return do(info)
			})
			if err != nil {
				return err
			}
		}
		for _, name := range some {
			info, err := p.until(ctx, name, left)
			if err != nil {
				return err
			}
			p.watch.Done(copies(info))
		}
	}
	return nil
}

// littleBytes is what is copied within a moment.
const littleBytes = 16 << 20

// only are the names of some lanes' streams; all names when there are no lanes.
func only(names []string, lanes []int) ([]string, error) {
	if len(lanes) == 0 {
		return names, nil
	}
	var some []string
	for _, lane := range lanes {
		name := stream.LaneName(lane)
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("there is no lane %d", lane)
		}
		some = append(some, name)
	}
	return some, nil
}

// names are those of all streams of the installation. Buckets come first: they are
// small, and without them nothing works.
func (p *Placement) names(ctx context.Context) ([]string, error) {
	var all []string
	err := p.again(ctx, "streams", func() error {
		asking, cancel := context.WithTimeout(ctx, askLimit)
		defer cancel()
		all = nil
		list := p.js.StreamNames(asking)
		for name := range list.Name() {
			if strings.HasPrefix(name, stream.LanePrefix) || slices.Contains(buckets, name) {
				all = append(all, name)
			}
		}
		return list.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("look up streams: %w", err)
	}
	if len(all) == 0 {
		return nil, errNone
	}
	slices.SortFunc(all, func(a, b string) int {
		if x, y := slices.Contains(buckets, a), slices.Contains(buckets, b); x != y {
			if x {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	return all, nil
}

var errNone = errors.New("there are no streams yet: sluice lanes make makes them")

func (p *Placement) info(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	handle, err := p.js.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("look up stream %s: %w", name, err)
	}
	return handle.CachedInfo(), nil
}

const (
	askLimit = 5 * time.Second        // of one question
	askEvery = 200 * time.Millisecond // while there is something to wait for
)

// again does something until it succeeds, or fails for a reason that lasts: servers
// that have no leader, or have just started, do not answer at all.
func (p *Placement) again(ctx context.Context, what string, do func() error) error {
	for {
		err := do()
		if err == nil || !passes(err) || ctx.Err() != nil {
			return err
		}
		p.watch.Waiting(what, err.Error())
		select {
		case <-ctx.Done():
			return err
		case <-time.After(askEvery):
		}
	}
}

func passes(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.ErrorCode == codeNoCluster
	}
	for _, passing := range []error{
		context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, nats.ErrDisconnected, nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded,
	} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// leading waits until a stream has a leader.
func (p *Placement) leading(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	return p.until(ctx, name, func(info *jetstream.StreamInfo) string {
		if info.Cluster == nil || info.Cluster.Leader == "" {
			return "it has no leader"
		}
		return ""
	})
}

// until waits until nothing is left to wait for. A stream for which no server answers
// is electing a leader.
func (p *Placement) until(ctx context.Context, name string, left func(*jetstream.StreamInfo) string) (*jetstream.StreamInfo, error) {
	for {
		info, err := p.info(ctx, name)
		reason := ""
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			return nil, err
		case err != nil:
			reason = err.Error()
		default:
			if reason = left(info); reason == "" {
				return info, nil
			}
		}
		p.watch.Waiting(name, reason)
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("stream %s: %s: NATS goes on with it; the same command waits for it again: %w", name, reason, ctx.Err())
		case <-time.After(askEvery):
		}
	}
}

// update changes a stream, and says for which servers room was looked for.
func (p *Placement) update(ctx context.Context, cfg jetstream.StreamConfig, servers string) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	_, err := p.js.UpdateStream(ctx, cfg)
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == codeNoSuitablePeers || api.ErrorCode == codeReplicasAlone) {
		return fmt.Errorf("stream %s cannot be held by %s: there are too few of them in different zones, or they have no room: %w", cfg.Name, servers, err)
	}
	if err != nil {
		return fmt.Errorf("change stream %s: %w", cfg.Name, err)
	}
	return nil
}

// Error codes of JetStream.
const (
	codeNoSuitablePeers = 10005
	codeNoCluster       = 10008 // there is no leader
	codeReplicasAlone   = 10074
	codeNoOtherPeer     = 10075
)

// ask makes a request of JetStream's API that nats.go has no call for.
func (p *Placement) ask(ctx context.Context, subject string, request any) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	return snapshot.Ask(ctx, p.nc, subject, request, nil)
}

// copies is where a stream is.
func copies(info *jetstream.StreamInfo) Copies {
	c := Copies{Stream: info.Config.Name, Messages: info.State.Msgs, Bytes: info.State.Bytes, Problem: complete(info)}
	if info.Cluster == nil {
		return c
	}
	if c.Leader = info.Cluster.Leader; c.Leader != "" {
		c.Servers = append(c.Servers, c.Leader)
	}
	for _, peer := range info.Cluster.Replicas {
		c.Servers = append(c.Servers, peer.Name)
	}
	slices.Sort(c.Servers)
	return c
}

// complete says what a stream lacks of its copies, nothing when all servers that
// are to hold it have what the leader has, and no others do.
func complete(info *jetstream.StreamInfo) string { return incomplete(info, info.Config.Replicas) }

func incomplete(info *jetstream.StreamInfo, copies int) string {
	if info.Cluster == nil { // a server that runs alone
		if copies > 1 {
			return "the server runs alone"
		}
		return ""
	}
	if info.Cluster.Leader == "" {
		return "it has no leader"
	}
	for _, peer := range info.Cluster.Replicas {
		switch {
		case peer.Offline:
			return fmt.Sprintf("%s is away", peer.Name)
		case !peer.Current:
			return fmt.Sprintf("%s is %d behind", peer.Name, peer.Lag)
		}
	}
	if desired := info.Cluster.Desired; desired != nil {
		if desired.Status != nil {
			return strings.TrimSpace(desired.Status.Description + " " + desired.Status.Err)
		}
		return "its copies are being moved"
	}
	if have := 1 + len(info.Cluster.Replicas); have != copies {
		return fmt.Sprintf("%d of %d copies are there", have, copies)
	}
	return ""
}
