package backup

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// streams copies the streams, and restores them into a server of their own.
func (b *backup) streams(ctx context.Context) error {
	for _, name := range b.streamNames() {
		if err := b.copyStream(ctx, name); err != nil {
			return err
		}
	}
	if b.m.file(streamFile(stream.LaneName(0))).Holds != nil {
		return nil // it was rehearsed before an interruption
	}
	if err := b.rehearse(ctx); err != nil {
		return fmt.Errorf("restore the streams to see what was copied: %w", err)
	}
	return b.m.save(b.cfg.Folder)
}

// streamNames are the streams in the order in which they are copied. Users, fields and
// dead letters name messages of lanes, and none that the lanes have not got yet. A dead
// letter goes after what became of it was noted. What is left of a message that was
// redacted is there before the message goes, and a source before its first message.
// Leases are not copied, and where the lanes stand is in the manifest.
func (b *backup) streamNames() []string {
	all := []string{"KV_" + stream.StateBucket, stream.DeadStream, stream.NoteStream}
	for _, l := range b.m.Lanes {
		all = append(all, stream.LaneName(l.Number))
	}
	return append(all, stream.RedactedStream, "KV_"+stream.SourceBucket)
}

func streamFile(name string) string { return filepath.Join("streams", name+".snapshot") }

// snapshotTries is how often a stream is copied: a purge may take the very block away
// that is being read.
const snapshotTries = 3

func (b *backup) copyStream(ctx context.Context, name string) error {
	f := File{Path: streamFile(name), Stream: name}
	if b.m.file(f.Path) != nil {
		return nil
	}
	for try := 1; ; try++ {
		var held state
		err := b.write(&f, func(to io.Writer) (err error) {
			if f.Config, held, err = snapshot(ctx, b.nc, name, to); err != nil {
				return err
			}
			f.Config, err = b.asCopy(name, f.Config)
			return err
		}, nil)
		if err == nil {
			b.moved(held.Messages)
			return nil
		}
		if try == snapshotTries || ctx.Err() != nil {
			return err
		}
		b.cfg.Log.Warn("copying a stream again", "stream", name, "error", err)
	}
}

// asCopy is the configuration of a stream that is a copy: servers say of one that is
// restored that it was made now, but a lane is the one that its position counts in.
func (b *backup) asCopy(name string, config json.RawMessage) (json.RawMessage, error) {
	var was struct {
		Metadata map[string]string `json:"metadata"`
	}
	if err := json.Unmarshal(config, &was); err != nil {
		return nil, fmt.Errorf("read the configuration of stream %s: %w", name, err)
	}
	metadata := map[string]string{}
	for key, value := range was.Metadata {
		if !strings.HasPrefix(key, "_nats.") { // the server's own
			metadata[key] = value
		}
	}
	for _, l := range b.m.Lanes {
		if of, created, _ := strings.Cut(l.Position.Stream, "@"); of == name {
			metadata[stream.CreatedKey] = created
		}
	}
	return with(config, map[string]any{"metadata": metadata})
}

// rehearse restores the copied streams into a server of their own, reads every lane to
// its end, and notes what they hold and how far the sources reach.
func (b *backup) rehearse(ctx context.Context) (err error) {
	scratch := filepath.Join(b.cfg.Folder, "rehearsal")
	if err := os.RemoveAll(scratch); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	quiet := slog.New(slog.DiscardHandler)
	server, err := embedded.Start(embedded.Config{Data: scratch}, quiet)
	if err != nil {
		return err
	}
	defer server.Shutdown()
	nc, err := server.Connect()
	if err != nil {
		return err
	}
	defer nc.Close()
	for i := range b.m.Files {
		f := &b.m.Files[i]
		if f.Stream == "" {
			continue
		}
		if err := f.restore(ctx, nc, b.cfg.Folder, 1); err != nil {
			return err
		}
		now, err := look(ctx, nc, f.Stream)
		if err != nil {
			return err
		}
		f.Holds = now
	}
	lanes, err := stream.Open(ctx, nc, stream.Config{RepeatWindow: b.cfg.RepeatWindow}, quiet, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	tails := tails{}
	for _, l := range b.m.Lanes {
		if err := b.readLane(ctx, lanes, l, tails); err != nil {
			return fmt.Errorf("lane %d: %w", l.Number, err)
		}
	}
	b.m.Resend = tails.join(b.m.Resend)
	return nil
}

// restore makes the stream of a file, with so many replicas; as many as it had for 0.
func (f *File) restore(ctx context.Context, nc *nats.Conn, folder string, replicas int) error {
	config := f.Config
	if replicas > 0 {
		var err error
		if config, err = with(config, map[string]any{"num_replicas": replicas, "placement": nil}); err != nil {
			return err
		}
	}
	file, err := os.Open(filepath.Join(folder, f.Path))
	if err != nil {
		return err
	}
	defer file.Close()
	var held state
	if f.Holds != nil {
		held = *f.Holds
	}
	return restoreStream(ctx, nc, f.Stream, config, held, bufio.NewReaderSize(file, 1<<20))
}

// look says what a stream holds; nil when there is none.
func look(ctx context.Context, nc *nats.Conn, name string) (*state, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	handle, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", name, err)
	}
	s := stateOf(handle.CachedInfo())
	return &s, nil
}

// readTime is how long the next message of a lane may take.
const readTime = time.Minute

// readLane reads what was copied of a lane to its end. It fails when the lane lacks
// something that it needs behind the cut.
func (b *backup) readLane(ctx context.Context, lanes *stream.Stream, l Lane, tails tails) error {
	i := slices.IndexFunc(lanes.Lanes(), func(info stream.Lane) bool { return info.Number == l.Number })
	if i < 0 {
		return errors.New("it was copied and is not there")
	}
	info := lanes.Lanes()[i]
	if info.First > l.needs() {
		return fmt.Errorf("it begins at %d, and %d is needed: it was purged while the backup stood still", info.First, l.needs())
	}
	if info.Last < l.Position.Done {
		return fmt.Errorf("it ends at %d, and was stored up to %d", info.Last, l.Position.Done)
	}
	if info.Messages == 0 && info.First > info.Last {
		return nil
	}
	reader, err := lanes.OpenLane(ctx, l.Number, l.needs(), 0)
	if err != nil {
		return err
	}
	defer reader.Close()
	var columns record.Columns
	for seq := l.needs(); seq <= info.Last; seq++ {
		waiting, cancel := context.WithTimeout(ctx, readTime)
		e, err := reader.Next(waiting)
		cancel()
		if err != nil {
			return fmt.Errorf("read message %d: %w", seq, err)
		}
		if seq%512 == 0 || seq == info.Last {
			b.moved(min(512, seq-l.needs()+1))
		}
		if seq <= l.Position.Done || e.Topic != stream.RecordTopic(l.Number) || e.Err != nil {
			continue
		}
		for i := range e.Messages {
			m := &e.Messages[i]
			m.Incarnation = l.Position.Incarnation
			columns.Reset()
			if _, err := columns.AppendGood(m); err != nil {
				continue // it will be set aside
			}
			for row := range columns.Rows() {
				at := sourcePart{Source: string(columns.Source.Value(row))}
				position := int64(0)
				if columns.Kind[row] == flow.ByPosition {
					at.Partition, position = columns.PartitionID[row], columns.Position[row]
				}
				tails.add(at, position, m.Received)
			}
		}
	}
	return nil
}

// tails are what sources have sent behind the cut.
type tails map[sourcePart]*tail

type sourcePart struct {
	Source    string
	Partition int64
}

// tail is what came of one partition: the least and the greatest position of every
// second.
type tail struct {
	until   time.Time
	seconds map[int64][2]int64
}

func (t tails) add(at sourcePart, position int64, received time.Time) {
	one := t[at]
	if one == nil {
		one = &tail{seconds: map[int64][2]int64{}}
		t[at] = one
	}
	second, known := one.seconds[received.Unix()]
	if !known {
		second = [2]int64{position, position}
	}
	one.seconds[received.Unix()] = [2]int64{min(second[0], position), max(second[1], position)}
	if received.After(one.until) {
		one.until = received
	}
	if !known && len(one.seconds) > 3*int(overlap/time.Second) {
		for s := range one.seconds {
			if s < one.until.Add(-overlap).Unix() {
				delete(one.seconds, s)
			}
		}
	}
}

// join adds what the tables hold.
func (t tails) join(stored []warehouse.Reach) []warehouse.Reach {
	reaches := map[sourcePart]warehouse.Reach{}
	for _, r := range stored {
		reaches[sourcePart{r.Source, r.Partition}] = r
	}
	for at, tail := range t {
		before, was := reaches[at]
		oldest := tail.until.Add(-overlap)
		r := warehouse.Reach{Source: at.Source, Partition: at.Partition, Until: tail.until.UTC()}
		if was && before.Until.After(oldest) {
			r = before
			if tail.until.After(r.Until) {
				r.Until = tail.until.UTC()
			}
		} else {
			was = false
		}
		for second, positions := range tail.seconds {
			if second < oldest.Unix() {
				continue
			}
			if !was {
				r.From, r.Last, was = positions[0], positions[1], true
			}
			r.From, r.Last = min(r.From, positions[0]), max(r.Last, positions[1])
		}
		reaches[at] = r
	}
	all := make([]warehouse.Reach, 0, len(reaches))
	for _, r := range reaches {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b warehouse.Reach) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Partition, b.Partition))
	})
	return all
}
