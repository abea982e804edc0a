package backup

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/cmd/internal/snapshot"
	"sluice/pkg/stream"
)

func streamFile(name string) string { return filepath.Join("streams", name+".snapshot") }

// snapshotTries bounds the attempts to copy a stream: a purge may delete the block file
// being read.
const snapshotTries = 3

func (b *backup) copyStream(ctx context.Context, name string) error {
	f := File{Path: streamFile(name), Stream: name}
	if b.m.file(f.Path) != nil {
		return nil
	}
	for try := 1; ; try++ {
		err := b.write(&f, func(to io.Writer) (err error) {
			if f.Config, f.Holds, err = snapshot.Take(ctx, b.nc, name, to); err != nil {
				return err
			}
			f.Config, err = b.asCopy(name, f.Config)
			return err
		}, nil)
		if err == nil {
			b.moved(f.Holds.Messages)
			return nil
		}
		if try == snapshotTries || ctx.Err() != nil {
			return err
		}
		b.cfg.Log.Warn("backup: copying a stream failed: retrying", "stream", name, "error", err)
	}
}

// laterStreams are the streams copied after the hold, in this order. Dead letters come
// before lanes, which must have the messages that they name, and before notes: a letter is
// deleted after its note is written. A source is written before its first message. Leases
// are not copied; lane states and orders to forget instances are in the manifest.
func (b *backup) laterStreams() []string {
	all := []string{stream.DeadStream, stream.NoteStream}
	for _, l := range b.m.Lanes {
		all = append(all, stream.LaneName(l.Number))
	}
	return append(all, "KV_"+stream.SourceBucket)
}

// asCopy is the configuration of a copied stream. A restored stream gets a new creation
// time, but a lane must match its lane state: the metadata keeps the former time.
func (b *backup) asCopy(name string, config json.RawMessage) (json.RawMessage, error) {
	var was struct {
		Metadata map[string]string `json:"metadata"`
	}
	if err := json.Unmarshal(config, &was); err != nil {
		return nil, fmt.Errorf("read the configuration of stream %s: %w", name, err)
	}
	created := ""
	for _, l := range b.m.Lanes {
		if of, at, _ := strings.Cut(l.Position.StreamID, "@"); of == name {
			created = at
		}
	}
	return with(config, map[string]any{"metadata": snapshot.Metadata(was.Metadata, created)})
}

// restore restores the stream of a file with replicas; 0: as in the backup.
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
	return snapshot.Restore(ctx, nc, f.Stream, config, f.Holds, bufio.NewReaderSize(file, 1<<20))
}

// look returns the state of a stream; nil when it does not exist.
func look(ctx context.Context, nc *nats.Conn, name string) (*snapshot.State, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	handle, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the state of stream %s: %w", name, err)
	}
	s := snapshot.StateOf(handle.CachedInfo())
	return &s, nil
}

// with changes settings of a stream's configuration.
func with(config json.RawMessage, changes map[string]any) (json.RawMessage, error) {
	var all map[string]any
	if err := json.Unmarshal(config, &all); err != nil {
		return nil, err
	}
	for name, value := range changes {
		if value == nil {
			delete(all, name)
		} else {
			all[name] = value
		}
	}
	return json.Marshal(all)
}
