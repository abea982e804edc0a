package placement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// closedBytes is how much a lane may hold that takes no more. NATS refuses what
// comes and removes nothing of what is there, and the api answers 429.
const closedBytes = 1

// keptBytes is the metadata of a closed lane that says how much it could hold.
const keptBytes = "sluice-max-bytes"

// Carry copies every stream of an installation from another NATS to this one, with
// its numbers and times, and the lives of lanes with them: for a server that runs
// alone, which NATS lets become one of several only without what it holds.
//
//  1. The lanes there take nothing any more: posts are answered 429.
//  2. What they hold is stored, and its changes applied.
//  3. Every stream but the leases is copied, compared, and held by so many servers.
//
// A failure in between opens the lanes there again, and removes what was copied. A
// crash leaves them closed, and what was copied: the next Carry goes on with it. In
// the end the lanes there stay closed: what they would take would not be stored.
func (p *Placement) Carry(ctx context.Context, from *nats.Conn, installation *stream.Stream, replicas int) (err error) {
	if p.nc.ConnectedClusterName() == "" {
		return errors.New("--nats names a server that runs alone: what is carried there could not be carried further without another pause")
	}
	source, err := New(from, p.watch)
	if err != nil {
		return err
	}
	names, err := source.names(ctx)
	if err != nil {
		return err
	}
	there, err := p.names(ctx)
	if err != nil && !errors.Is(err, errNone) {
		return err
	}
	if err := p.differs(ctx, source, there); err != nil {
		return err
	}
	if err := source.close(ctx, installation); err != nil {
		return errors.Join(err, source.open(context.WithoutCancel(ctx), installation))
	}
	// Closed. A crash here leaves the lanes so, and says so in their metadata.
	var made []string
	defer func() {
		if err == nil {
			return
		}
		after := context.WithoutCancel(ctx)
		for _, name := range made {
			err = errors.Join(err, p.remove(after, name))
		}
		err = errors.Join(err, source.open(after, installation))
	}()
	if err := source.stored(ctx, installation); err != nil {
		return err
	}
	for _, name := range names {
		if name == "KV_"+stream.LeaseBucket { // of those who work there
			continue
		}
		made = append(made, name)
		if err := p.copy(ctx, source, name); err != nil {
			return fmt.Errorf("copy stream %s: %w", name, err)
		}
	}
	return p.Replicas(ctx, replicas)
}

// differs fails when there are streams here that are no copy of those there: an
// installation of its own, or one that has gone on since it was carried.
func (p *Placement) differs(ctx context.Context, source *Placement, names []string) error {
	for _, name := range names {
		have, err := p.info(ctx, name)
		if err != nil {
			return err
		}
		if _, carried := have.Config.Metadata[stream.CreatedKey]; !carried && name != "KV_"+stream.LeaseBucket {
			return fmt.Errorf("stream %s is there already, and was not carried there: nothing is changed", name)
		}
		was, err := source.info(ctx, name)
		if err != nil {
			return err
		}
		if have.State.LastSeq > was.State.LastSeq && name != "KV_"+stream.LeaseBucket {
			return fmt.Errorf("stream %s has gone on where it was carried to: nothing is changed", name)
		}
	}
	return nil
}

// close makes the lanes take nothing any more.
func (p *Placement) close(ctx context.Context, installation *stream.Stream) error {
	return p.lanes(ctx, installation, func(cfg *jetstream.StreamConfig) bool {
		if cfg.Metadata[keptBytes] != "" {
			return false
		}
		cfg.Metadata = maps.Clone(cfg.Metadata)
		if cfg.Metadata == nil {
			cfg.Metadata = map[string]string{}
		}
		cfg.Metadata[keptBytes] = strconv.FormatInt(cfg.MaxBytes, 10)
		cfg.MaxBytes = closedBytes
		return true
	})
}

// open undoes close.
func (p *Placement) open(ctx context.Context, installation *stream.Stream) error {
	return p.lanes(ctx, installation, reopen)
}

func reopen(cfg *jetstream.StreamConfig) bool {
	bytes, err := strconv.ParseInt(cfg.Metadata[keptBytes], 10, 64)
	if err != nil {
		return false // it is not closed
	}
	cfg.Metadata = maps.Clone(cfg.Metadata)
	delete(cfg.Metadata, keptBytes)
	cfg.MaxBytes = bytes
	return true
}

func (p *Placement) lanes(ctx context.Context, installation *stream.Stream, change func(*jetstream.StreamConfig) bool) error {
	for _, lane := range installation.LaneNumbers() {
		info, err := p.info(ctx, stream.LaneName(lane))
		if err != nil {
			return err
		}
		if cfg := info.Config; change(&cfg) {
			if err := p.again(ctx, cfg.Name, func() error { return p.update(ctx, cfg, "") }); err != nil {
				return err
			}
		}
	}
	return nil
}

// stored waits until everything that the lanes hold is stored, or set aside, and
// no process is in the middle of anything.
func (p *Placement) stored(ctx context.Context, installation *stream.Stream) error {
	for {
		lane, reason, err := unstored(ctx, installation)
		if err != nil && ctx.Err() == nil && !errors.Is(err, flow.ErrUnavailable) {
			return err
		}
		if err == nil && reason == "" {
			return nil
		}
		if err != nil {
			reason = err.Error()
		}
		p.watch.Waiting(lane, reason)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %s: %w", lane, reason, ctx.Err())
		case <-time.After(askEvery):
		}
	}
}

func unstored(ctx context.Context, installation *stream.Stream) (lane, reason string, err error) {
	all, err := installation.Standings(ctx)
	if err != nil {
		return "lanes", "", err
	}
	for _, at := range all {
		if at.Waiting > 0 || at.Position.Claim != nil {
			return at.Lane.Stream, fmt.Sprintf("%d messages wait to be stored", at.Waiting), nil
		}
	}
	changes, err := installation.ChangeLag(ctx)
	if err == nil && changes.Waiting > 0 {
		reason = fmt.Sprintf("%d changes wait to be applied", changes.Waiting)
	}
	return stream.LaneName(0), reason, err
}

// copy copies a stream, unless it is here as it is there. What a copy that was
// interrupted has left goes first.
func (p *Placement) copy(ctx context.Context, source *Placement, name string) error {
	was, err := source.info(ctx, name)
	if err != nil {
		return err
	}
	if err := p.remove(ctx, name); err != nil {
		return err
	}
	cfg := was.Config
	reopen(&cfg)
	cfg.Replicas, cfg.Placement = 1, nil
	cfg.Metadata = maps.Clone(cfg.Metadata)
	if cfg.Metadata == nil {
		cfg.Metadata = map[string]string{}
	}
	maps.DeleteFunc(cfg.Metadata, func(key, _ string) bool { return strings.HasPrefix(key, "_nats.") }) // its own
	if cfg.Metadata[stream.CreatedKey] == "" {
		cfg.Metadata[stream.CreatedKey] = strconv.FormatInt(was.Created.UnixNano(), 10)
	}
	if err := p.restore(ctx, source, name, cfg, was.State.Bytes); err != nil {
		return err
	}
	have, err := p.until(ctx, name, func(*jetstream.StreamInfo) string { return "" })
	if err != nil {
		return err
	}
	if now, then := stateOf(have), stateOf(was); now != then {
		return fmt.Errorf("it is not the same here: %s, there %s", now, then)
	}
	return nil
}

// stateOf is what tells a stream from a copy that lacks something.
func stateOf(info *jetstream.StreamInfo) string {
	s := info.State
	if s.Msgs == 0 {
		s.FirstSeq = s.LastSeq + 1 // 0, where there never was one
	}
	return fmt.Sprintf("%d messages from %d to %d of %s", s.Msgs, s.FirstSeq, s.LastSeq, s.LastTime.UTC().Format(time.RFC3339Nano))
}

func (p *Placement) remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if err := p.js.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("remove stream %s: %w", name, err)
	}
	return nil
}

// chunkLimit is how long a piece of a stream may take.
const chunkLimit = 30 * time.Second

// restore makes a stream here of what JetStream says of it there, piece by piece.
func (p *Placement) restore(ctx context.Context, source *Placement, name string, cfg jetstream.StreamConfig, bytes uint64) error {
	inbox := source.nc.NewInbox()
	pieces, err := source.nc.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	defer func() { _ = pieces.Unsubscribe() }() // the connection may be gone
	var there struct {
		State json.RawMessage `json:"state"`
	}
	if err := source.request(ctx, "$JS.API.STREAM.SNAPSHOT."+name, map[string]any{"deliver_subject": inbox, "no_consumers": true, "chunk_size": 512 << 10}, &there); err != nil {
		return err
	}
	var here struct {
		To string `json:"deliver_subject"`
	}
	if err := p.request(ctx, "$JS.API.STREAM.RESTORE."+name, map[string]any{"config": cfg, "state": there.State}, &here); err != nil {
		return err
	}
	for done := 0; ; {
		asking, cancel := context.WithTimeout(ctx, chunkLimit)
		piece, err := pieces.NextMsgWithContext(asking)
		cancel()
		if err != nil {
			return fmt.Errorf("read it: %w", err)
		}
		if status := piece.Header.Get("Status"); len(piece.Data) == 0 && status != "" && status != "204" {
			return fmt.Errorf("read it: %s %s", status, piece.Header.Get("Description"))
		}
		if err := p.chunk(ctx, here.To, piece.Data); err != nil {
			return fmt.Errorf("write it: %w", err)
		}
		if len(piece.Data) == 0 {
			return nil
		}
		done += len(piece.Data)
		p.watch.Waiting(name, fmt.Sprintf("%d MiB of about %d are copied", done>>20, bytes>>20))
		if piece.Reply != "" {
			if err := piece.Respond(nil); err != nil {
				return err
			}
		}
	}
}

// chunk hands a piece to a stream that is being restored; an empty one ends it. The
// server that restores it may be another one than that of the connection, which
// hears of it a moment later: until then it does not pass the piece on.
func (p *Placement) chunk(ctx context.Context, to string, piece []byte) error {
	ctx, cancel := context.WithTimeout(ctx, chunkLimit)
	defer cancel()
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		answer, err := p.nc.RequestWithContext(ctx, to, piece)
		if errors.Is(err, nats.ErrNoResponders) && time.Since(begun) < askLimit {
			continue
		}
		if err != nil || len(answer.Data) == 0 {
			return err
		}
		return failed(answer.Data, nil)
	}
}
