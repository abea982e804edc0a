package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/flow"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// RestoreConfig says how.
type RestoreConfig struct {
	Folder   string        // of the backup
	Replicas int           // of the streams; 0: as many as they had
	Streams  stream.Config // of those that are not in the backup

	Progress func(done, total uint64) // rows and messages; default none
	Log      *slog.Logger
}

// restore is one run.
type restore struct {
	cfg    RestoreConfig
	m      *Manifest
	nc     *nats.Conn
	js     jetstream.JetStream
	tables *warehouse.Restore

	resumed bool // NATS has what an interrupted run has left
	done    uint64
}

// Restore makes an installation of a complete backup, whose files Check has read: the
// tables first, then the streams, and at last where the lanes stand. Neither
// api nor ingester may run meanwhile. NATS and the database must hold nothing, or what
// an interrupted restore of the same backup has left, which is completed.
func Restore(ctx context.Context, m *Manifest, nc *nats.Conn, db *warehouse.DB, cfg RestoreConfig) error {
	if cfg.Progress == nil {
		cfg.Progress = func(uint64, uint64) {}
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	r := &restore{cfg: cfg, m: m, nc: nc, js: js}
	if db.Database() != m.Database { // names of tables stand in views and conditions
		return fmt.Errorf("the backup is of database %s, and is restored into one of that name, not into %s", m.Database, db.Database())
	}
	if r.tables, err = db.RestoreBegun(ctx, m.ID); err != nil {
		return err
	}
	if !r.tables.Done(placed) {
		if err := r.checkStreams(ctx); err != nil {
			return err
		}
		if r.tables, err = db.RestoreInto(ctx, m.ID, m.Schema); err != nil {
			return err
		}
		if err := r.fill(ctx); err != nil {
			return err
		}
		// The tables are as they were, and stay so whatever happens from here on.
		for _, f := range m.Files {
			if f.Stream != "" {
				if err := r.stream(ctx, f); err != nil {
					return err
				}
			}
		}
		if err := r.positions(ctx); err != nil {
			return err
		}
		if err := r.tables.Note(ctx, placed); err != nil {
			return err
		}
	}
	// All is there. A crash from here on leaves nothing but names to remove.
	if err := r.js.DeleteKeyValue(ctx, markBucket); err != nil && !errors.Is(err, jetstream.ErrBucketNotFound) {
		return fmt.Errorf("end the restore: %w", err)
	}
	return r.tables.Finish(ctx, m.Tables)
}

func (r *restore) moved(n uint64) {
	r.done += n
	r.cfg.Progress(r.done, max(r.done, r.m.Rows()+r.m.Messages()))
}

// markBucket holds the id of the backup that is being restored, until it is: so that
// what an interrupted restore has left is told from what belongs to others.
const markBucket = "flow_restore"

// checkStreams fails when NATS holds something that this restore has not put there
// before it was interrupted, or when an ingester works there; and marks it.
func (r *restore) checkStreams(ctx context.Context) error {
	if err := r.checkIdle(ctx); err != nil {
		return err
	}
	marks, err := r.js.KeyValue(ctx, markBucket)
	if err == nil {
		var mark jetstream.KeyValueEntry
		if mark, err = marks.Get(ctx, "id"); err == nil && string(mark.Value()) == r.m.ID {
			r.resumed = true
			return nil
		}
		if err == nil {
			return fmt.Errorf("these NATS servers are in the middle of the restore of another backup, %s: finish that one, or delete their streams", mark.Value())
		}
	}
	if !errors.Is(err, jetstream.ErrBucketNotFound) && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return fmt.Errorf("look for a restore: %w", err)
	}
	names := r.js.StreamNames(ctx)
	for name := range names.Name() {
		if !strings.HasPrefix(name, stream.LanePrefix) && !strings.HasPrefix(name, "KV_flow_") {
			continue
		}
		now, err := look(ctx, r.nc, name)
		if err != nil {
			return err
		}
		if now == nil || now.Last == 0 || name == "KV_"+stream.LeaseBucket || name == "KV_"+markBucket {
			continue // made, and never used
		}
		return fmt.Errorf("stream %s is already there, with %d messages: a restore writes over nothing; choose other NATS servers, or delete its streams", name, now.Messages)
	}
	if err := names.Err(); err != nil {
		return err
	}
	marks, err = r.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: markBucket, Description: "Sluice: a backup is being restored", Replicas: max(r.cfg.Replicas, 1)})
	if err == nil {
		_, err = marks.PutString(ctx, "id", r.m.ID)
	}
	if err != nil {
		return fmt.Errorf("begin the restore: %w", err)
	}
	return nil
}

// checkIdle fails when an ingester works there: it renews an entry all the time, and
// takes it out when it stops.
func (r *restore) checkIdle(ctx context.Context) error {
	leases, err := r.js.KeyValue(ctx, stream.LeaseBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for ingesters: %w", err)
	}
	keys, err := leases.Keys(ctx)
	if errors.Is(err, jetstream.ErrNoKeysFound) {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("an ingester works with these NATS servers (%s): stop all ingesters and apis first", keys[0])
	}
	return err
}

// fill fills the tables.
func (r *restore) fill(ctx context.Context) error {
	if r.tables.Done(filled) { // and what it took may be removed already
		r.moved(r.m.Rows())
		return nil
	}
	for _, kept := range r.m.Retentions { // before there are rows, which a shorter one would let expire
		if err := r.tables.Retain(ctx, kept); err != nil {
			return err
		}
	}
	for _, t := range r.m.Tables {
		if err := r.tables.Prepare(ctx, t); err != nil {
			return err
		}
		var rows, digest uint64
		for _, f := range r.m.Files {
			if f.Table != t.Name {
				continue
			}
			rows, digest = rows+f.Rows, digest+f.Digest
			if !r.tables.Done(t.Name + "/" + f.Name) {
				err := f.rows(filepath.Join(r.cfg.Folder, f.Path), func(from io.Reader) (uint64, error) {
					return r.tables.Load(ctx, t, f.Name, from)
				})
				if err != nil {
					return err
				}
			}
			r.moved(f.Rows)
		}
		if err := r.tables.Compare(ctx, t, rows, digest); err != nil {
			return err
		}
	}
	for _, t := range r.m.Tables {
		if err := r.tables.Publish(ctx, t); err != nil {
			return err
		}
	}
	if err := r.tables.MakeViews(ctx, r.m.Models); err != nil { // they hold nothing: an operator can make them again
		r.cfg.Log.Warn("not every view of the database models could be made: its definition is in the manifest", "error", err)
	}
	return r.tables.Note(ctx, filled)
}

// What is noted of a restore beside its pieces.
const (
	filled = "all tables"    // are in their place
	placed = "all positions" // are written: the streams are there too
)

// stream makes a stream, and looks whether it holds what was copied.
func (r *restore) stream(ctx context.Context, f File) error {
	item := "stream " + f.Stream
	if r.tables.Done(item) {
		r.moved(f.Holds.Messages)
		return nil
	}
	now, err := look(ctx, r.nc, f.Stream)
	if err != nil {
		return err
	}
	if now != nil && (now.Last == 0 || r.resumed) { // never used, or a part of it
		if err := r.js.DeleteStream(ctx, f.Stream); err != nil {
			return fmt.Errorf("make room for stream %s: %w", f.Stream, err)
		}
	}
	if err := f.restore(ctx, r.nc, r.cfg.Folder, r.cfg.Replicas); err != nil {
		return err
	}
	if now, err = look(ctx, r.nc, f.Stream); err != nil {
		return err
	}
	needs, last := uint64(math.MaxUint64), f.Holds.Last
	for _, l := range r.m.Lanes {
		if stream.LaneName(l.Number) == f.Stream {
			needs, last = l.needs(), max(last, l.Position.Done)
		}
	}
	if now == nil || now.First > needs || now.Last < last {
		return fmt.Errorf("stream %s holds %+v after its restore, and must reach from %d to %d: the backup cannot be used", f.Stream, now, needs, last)
	}
	r.moved(f.Holds.Messages)
	return r.tables.Note(ctx, item)
}

// positions writes where the lanes stand, at the cut, and which instances their readers
// skip.
func (r *restore) positions(ctx context.Context) error {
	opening, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s, err := stream.Open(opening, r.nc, r.cfg.Streams, r.cfg.Log, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	for _, order := range r.m.Forgets {
		if err := s.RestoreForget(ctx, order); err != nil {
			return err
		}
	}
	if err := s.MoveExpiryLine(ctx, r.m.Expired); err != nil {
		return err
	}
	for _, l := range r.m.Lanes {
		if err := r.position(ctx, stream.NewLaneStates(s), l.Number, l.Position); err != nil {
			return err
		}
	}
	if r.m.Changes.Incarnation() == 0 {
		return nil
	}
	return r.position(ctx, stream.NewChangeStates(s), 0, r.m.Changes)
}

// position writes where a lane stands. All that it holds is unchanged; what comes behind
// it is of an incarnation of its own: the messages of the copied installation behind the
// copy have the same numbers.
func (r *restore) position(ctx context.Context, positions *stream.LaneStates, lane int, at flow.LaneState) error {
	identity, err := positions.StreamID(ctx, lane)
	if err != nil {
		return err
	}
	if identity != at.StreamID {
		return fmt.Errorf("the restored lane %d is called %s, and its position is of %s", lane, identity, at.StreamID)
	}
	holds, err := look(ctx, r.nc, stream.LaneName(lane))
	if err != nil {
		return err
	}
	at.Revision = 0
	behind := func(id uint64) flow.LaneState { return at.Behind(holds.Last, max(holds.First, 1), id) }
	_, err = positions.CompareAndSwap(ctx, lane, behind(r.incarnation()))
	if errors.Is(err, flow.ErrNotOwner) {
		now, unread := positions.Read(ctx, lane)
		if unread == nil && samePosition(now, behind(now.Incarnation())) {
			return nil // before an interruption
		}
		return fmt.Errorf("lane %d has a position already: %w", lane, cmp.Or(unread, err))
	}
	return err
}

// incarnation is one above all that lanes and changes have: a time in ms.
func (r *restore) incarnation() uint64 {
	id := max(uint64(time.Now().UnixMilli()), r.m.Changes.Incarnation()+1)
	for _, l := range r.m.Lanes {
		id = max(id, l.Position.Incarnation()+1)
	}
	return id
}

// Secrets copies the files of the data folder that the backup has, into another one.
func (m *Manifest) Secrets(folder, to string) error {
	for _, f := range m.Files {
		if !f.Secret {
			continue
		}
		name, err := filepath.Rel("secrets", f.Path)
		if err != nil || !filepath.IsLocal(name) {
			return fmt.Errorf("%s names a file outside of the backup: %q", manifestName, f.Path)
		}
		content, err := os.ReadFile(filepath.Join(folder, f.Path))
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o700); err != nil {
			return err
		}
		if err := writeSynced(filepath.Join(to, name), content); err != nil {
			return err
		}
	}
	return nil
}
