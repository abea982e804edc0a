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

type RestoreConfig struct {
	Folder   string        // of the backup
	Replicas int           // of the streams; 0: as in the backup
	Streams  stream.Config // of streams that are not in the backup

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

	resumed bool // NATS has streams of an interrupted restore
	done    uint64
}

// Restore restores a complete backup that Check has verified: tables, then streams, then
// lane states. Neither api nor ingester may run meanwhile. NATS and the database must be
// empty, or left by an interrupted restore of the same backup, which is resumed.
func Restore(ctx context.Context, m *Manifest, nc *nats.Conn, db *warehouse.DB, cfg RestoreConfig) error {
	if cfg.Progress == nil {
		cfg.Progress = func(uint64, uint64) {}
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	r := &restore{cfg: cfg, m: m, nc: nc, js: js}
	if db.Database() != m.Database { // views and row policies contain the table names
		return fmt.Errorf("the backup has database %s and cannot be restored into %s: give database %[1]s in --clickhouse", m.Database, db.Database())
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
		// Tables complete. A crash here resumes with the streams.
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
	// Complete. A crash here leaves only markers to remove.
	if err := r.js.DeleteKeyValue(ctx, markBucket); err != nil && !errors.Is(err, jetstream.ErrBucketNotFound) {
		return fmt.Errorf("remove the restore marker: %w", err)
	}
	return r.tables.Finish(ctx, m.Tables)
}

func (r *restore) moved(n uint64) {
	r.done += n
	r.cfg.Progress(r.done, max(r.done, r.m.Rows()+r.m.Messages()))
}

// markBucket holds the id of the backup during its restore: it distinguishes streams of
// an interrupted restore from others.
const markBucket = "flow_restore"

// checkStreams fails when NATS has streams that are not of an interrupted restore of this
// backup, or when an ingester runs. Else it writes the restore marker.
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
			return fmt.Errorf("these NATS servers have an incomplete restore of another backup, %s: finish that restore, or delete their streams", mark.Value())
		}
	}
	if !errors.Is(err, jetstream.ErrBucketNotFound) && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return fmt.Errorf("read the restore marker: %w", err)
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
			continue // never used
		}
		return fmt.Errorf("stream %s exists, with %d messages: choose other NATS servers, or delete their streams", name, now.Messages)
	}
	if err := names.Err(); err != nil {
		return err
	}
	marks, err = r.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: markBucket, Description: "Sluice: a backup is being restored", Replicas: max(r.cfg.Replicas, 1)})
	if err == nil {
		_, err = marks.PutString(ctx, "id", r.m.ID)
	}
	if err != nil {
		return fmt.Errorf("write the restore marker: %w", err)
	}
	return nil
}

// checkIdle fails while an ingester runs: it renews its lease, and deletes it on stop.
func (r *restore) checkIdle(ctx context.Context) error {
	leases, err := r.js.KeyValue(ctx, stream.LeaseBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the leases of ingesters: %w", err)
	}
	keys, err := leases.Keys(ctx)
	if errors.Is(err, jetstream.ErrNoKeysFound) {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("an ingester is connected to these NATS servers (%s): stop all ingesters and apis first", keys[0])
	}
	return err
}

// fill fills the tables.
func (r *restore) fill(ctx context.Context) error {
	if r.tables.Done(filled) { // its temporary tables may be dropped already
		r.moved(r.m.Rows())
		return nil
	}
	for _, kept := range r.m.Retentions { // before any rows, which a shorter retention would expire
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
	if err := r.tables.MakeViews(ctx, r.m.Models); err != nil { // views hold no data: an operator can recreate them
		r.cfg.Log.Warn("restore: a view of the database models was not created: create it by its definition in the manifest", "error", err)
	}
	return r.tables.Note(ctx, filled)
}

// Steps noted in the tables, beside those of single files.
const (
	filled = "all tables"    // are published
	placed = "all positions" // all lane states are written, and all streams restored
)

// stream restores a stream, and checks its message range.
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
	if now != nil && (now.Last == 0 || r.resumed) { // never used, or partly restored
		if err := r.js.DeleteStream(ctx, f.Stream); err != nil {
			return fmt.Errorf("delete the incomplete stream %s: %w", f.Stream, err)
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
		return fmt.Errorf("the backup is corrupt: stream %s holds %+v after its restore, but messages %d to %d are needed", f.Stream, now, needs, last)
	}
	r.moved(f.Holds.Messages)
	return r.tables.Note(ctx, item)
}

// positions writes the lane states, the orders to forget instances, and the expiry line.
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

// position writes a lane state. The restored messages keep their incarnation. Later ones
// are of a new one: the copied installation has other messages with the same sequences.
func (r *restore) position(ctx context.Context, positions *stream.LaneStates, lane int, at flow.LaneState) error {
	identity, err := positions.StreamID(ctx, lane)
	if err != nil {
		return err
	}
	if identity != at.StreamID {
		return fmt.Errorf("the restored lane %d is stream %s, but its lane state is of %s", lane, identity, at.StreamID)
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
			return nil // written before an interruption
		}
		return fmt.Errorf("lane %d has another lane state already: %w", lane, cmp.Or(unread, err))
	}
	return err
}

// incarnation is above those of all lanes and of changes: a time in ms.
func (r *restore) incarnation() uint64 {
	id := max(uint64(time.Now().UnixMilli()), r.m.Changes.Incarnation()+1)
	for _, l := range r.m.Lanes {
		id = max(id, l.Position.Incarnation()+1)
	}
	return id
}

// Secrets copies the secrets in the backup to a data folder.
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
