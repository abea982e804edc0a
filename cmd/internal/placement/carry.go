package placement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/snapshot"
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
		if at.Waiting > 0 || at.LaneState.Claim != nil {
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
	created := cmp.Or(cfg.Metadata[stream.CreatedKey], strconv.FormatInt(was.Created.UnixNano(), 10))
	cfg.Metadata = snapshot.Metadata(cfg.Metadata, created)
	if err := p.restore(ctx, source, name, cfg, snapshot.StateOf(was)); err != nil {
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

// restore makes a stream here of what JetStream says of it there, chunk by chunk.
func (p *Placement) restore(ctx context.Context, source *Placement, name string, cfg jetstream.StreamConfig, held snapshot.State) error {
	out, in := io.Pipe()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		_, _, err := snapshot.Take(ctx, source.nc, name, &counted{in, func(bytes int) {
			p.watch.Waiting(name, fmt.Sprintf("%d MiB of about %d are copied", bytes>>20, held.Bytes>>20))
		}, 0})
		_ = in.CloseWithError(err) // always nil
		return err
	})
	g.Go(func() error {
		err := snapshot.Restore(ctx, p.nc, name, cfg, held, out)
		_ = out.CloseWithError(err) // always nil
		return err
	})
	return g.Wait()
}

// counted tells how much was written.
type counted struct {
	io.Writer
	told  func(bytes int)
	bytes int
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.bytes += n
	c.told(c.bytes)
	return n, err
}
