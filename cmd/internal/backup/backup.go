// Package backup copies a running installation to a folder, and restores it.
//
// A backup is a consistent snapshot, taken while posts are accepted.
//
//	wait     until no move of a source and no forget is in progress
//	hold     lanes and changes pause between two blocks, without a claim, while ClickHouse is frozen
//	         (a second table beside each, of the same files), users and dataset fields
//	         are copied, and the lane states are read
//	streams  copy dead letters, their notes, then the lanes, which are not purged meanwhile
//	tables   copy and drop the frozen ones
//
// A restored installation resumes at the held checkpoints, and stores the later messages
// of its lanes once, like any ingester after a takeover. Sources resend records posted
// after the backup, from the positions in the manifest.
//
// Every file has a checksum and is read back after it is written. An interrupted backup
// resumes after the last complete file; interrupted before the end of the hold, it starts
// over.
//
//	backup.go    a backup from start to end
//	hold.go      holding, checking, and pinning the lanes
//	streams.go   JetStream snapshots
//	manifest.go  the contents of a backup
//	restore.go   the restore
package backup

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"

	"sluice/cmd/internal/audit/expiry"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
	"sluice/pkg/warehouse/native"
)

type Config struct {
	Folder    string
	Hold      time.Duration // maximum pause of the lanes if the backup dies; default 1 min
	Wait      time.Duration // for moves and forgets in progress; default 10 min
	Keep      time.Duration // how long the lanes are not purged if the backup dies; default 15 min
	Secrets   []string      // files of the folder SecretsOf to copy
	SecretsOf string

	Progress func(done, total uint64) // rows and messages; default none
	Log      *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Hold, c.Wait, c.Keep = cmp.Or(c.Hold, time.Minute), cmp.Or(c.Wait, 10*time.Minute), cmp.Or(c.Keep, 15*time.Minute)
	if c.Progress == nil {
		c.Progress = func(uint64, uint64) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// overlap is the time span of the last backed-up records that sources resend: of
// concurrent requests, the earlier may arrive after the later.
const overlap = time.Minute

// backup is one run.
type backup struct {
	cfg       Config
	stream    *stream.Stream
	positions *stream.LaneStates
	nc        *nats.Conn
	db        *warehouse.DB
	m         *Manifest
	saved     time.Time
	done      uint64
	total     uint64
}

// Run makes a backup, or resumes one. nc and s must be connected as the operator: only it
// may copy streams.
func Run(ctx context.Context, s *stream.Stream, nc *nats.Conn, db *warehouse.DB, cfg Config) (*Manifest, error) {
	b := &backup{cfg: cfg.withDefaults(), stream: s, positions: stream.NewLaneStates(s), nc: nc, db: db}
	if err := b.open(); err != nil {
		return nil, err
	}
	if len(b.m.Lanes) == 0 {
		if err := b.freeze(ctx); err != nil {
			return b.m, fmt.Errorf("freeze the installation: %w", err)
		}
	} else if err := b.unchanged(ctx); err != nil {
		return b.m, fmt.Errorf("the backup in %s cannot be resumed: %w: delete it and restart", cfg.Folder, err)
	}
	working, stop := context.WithCancelCause(ctx)
	var pinning sync.WaitGroup
	pinning.Go(func() { b.pin(working) })
	err := b.copy(working)
	stop(nil)
	pinning.Wait()
	if err != nil {
		return b.m, err
	}
	return b.m, b.release(ctx)
}

// copy is the part after the hold.
func (b *backup) copy(ctx context.Context) error {
	for _, l := range b.stream.Lanes() {
		b.total += l.Messages
	}
	for _, f := range b.m.Plan {
		b.total += f.Rows
	}
	for _, name := range b.laterStreams() {
		if err := b.copyStream(ctx, name); err != nil {
			return err
		}
	}
	if b.m.Plan == nil {
		var err error
		if b.m.Resend, err = b.db.Reaches(ctx, overlap); err != nil {
			return err
		}
		if b.m.Plan, err = b.db.DumpFiles(ctx, b.m.Tables); err != nil {
			return err
		}
		for _, f := range b.m.Plan {
			b.total += f.Rows
		}
		if err := b.m.save(b.cfg.Folder); err != nil {
			return err
		}
	}
	for _, f := range b.m.Plan {
		i := slices.IndexFunc(b.m.Tables, func(t warehouse.DumpTable) bool { return t.Name == f.Table })
		if err := b.table(ctx, b.m.Tables[i], f); err != nil {
			return err
		}
	}
	if err := b.secrets(); err != nil {
		return err
	}
	if err := b.unchanged(ctx); err != nil {
		return fmt.Errorf("the backup in %s is inconsistent: %w: delete it and restart", b.cfg.Folder, err)
	}
	b.m.Ended = time.Now().UTC()
	return b.m.save(b.cfg.Folder)
}

// release unpins the lanes, and drops the frozen tables.
func (b *backup) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return errors.Join(b.unpin(ctx), b.db.Unfreeze(ctx, b.m.Tables))
}

// open reads the manifest of an interrupted backup, or starts one in an empty folder.
func (b *backup) open() error {
	folder := b.cfg.Folder
	m, err := Open(folder)
	switch {
	case err == nil && m.Complete():
		return fmt.Errorf("%s has a complete backup of %s: choose another folder", folder, m.Begun.Format(time.RFC3339))
	case err == nil:
		if m.Database != b.db.Database() {
			return fmt.Errorf("the backup in %s has database %s, not %s: choose another folder", folder, m.Database, b.db.Database())
		}
		b.m = m
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	there, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(there, func(e fs.DirEntry) bool { return e.Name() != manifestName+".part" }); i >= 0 {
		return fmt.Errorf("%s has %s, but no backup: choose an empty or missing folder", folder, there[i].Name())
	}
	b.m = &Manifest{Format: Format, ID: strings.ToLower(rand.Text()[:16]), Database: b.db.Database(), Begun: time.Now().UTC()}
	return b.m.save(folder)
}

// freeze fixes the moment of the backup, and copies what cannot be copied later.
func (b *backup) freeze(ctx context.Context) error {
	m := b.m
	if err := b.waitQuiet(ctx); err != nil {
		return err
	}
	var err error
	if m.Schema, err = b.db.Schema(ctx); err != nil {
		return err
	}
	if m.Retentions, err = b.db.Retentions(ctx); err != nil {
		return err
	}
	if m.Tables, m.Models, err = b.db.DumpTables(ctx); err != nil {
		return err
	}
	if m.Expired, err = expiry.Line(ctx, b.stream, b.db); err != nil {
		return err
	}
	const tries = 5 // one suffices unless a lane moved although it was held
	for range tries {
		if err := b.db.MakeFreezable(ctx, m.Tables); err != nil {
			return err
		}
		m.Files = nil
		lanes, err := b.held(ctx, func(lanes []Lane) error {
			if err := b.db.Freeze(ctx, m.Tables); err != nil {
				return err
			}
			if m.Sources, m.Forgets, err = b.quiet(ctx); err != nil {
				return err
			}
			return b.copyStream(ctx, "KV_"+stream.StateBucket)
		})
		if errors.Is(err, errMoved) {
			continue
		}
		if err != nil {
			return err
		}
		m.Lanes = lanes
		return m.save(b.cfg.Folder)
	}
	return fmt.Errorf("the lanes moved while they were held, in %d attempts: check that every ingester runs this version", tries)
}

// waitQuiet waits until no move and no forget is in progress.
func (b *backup) waitQuiet(ctx context.Context) error {
	deadline := time.Now().Add(b.cfg.Wait)
	for {
		_, _, err := b.quiet(ctx)
		if !errors.Is(err, errBusy) {
			return err
		}
		if time.Now().After(deadline) {
			return err
		}
		b.cfg.Log.Info("backup: waiting", "for", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// errBusy: a move or a forget is in progress.
var errBusy = errors.New("not finished")

// quiet returns the sources and the orders to forget instances; errBusy while a move or a
// forget is in progress.
func (b *backup) quiet(ctx context.Context) ([]stream.Source, []flow.Forget, error) {
	if err := b.stream.Refresh(ctx); err != nil {
		return nil, nil, err
	}
	sources := b.stream.Sources()
	for _, s := range sources {
		if len(s.Move) > 0 {
			return nil, nil, fmt.Errorf("the move of source %q to other lanes is %w: finish it, or undo it with sluice lanes spread --stay", s.Name, errBusy)
		}
	}
	orders, err := b.stream.Forgets(ctx)
	if err != nil {
		return nil, nil, err
	}
	receipts, err := b.db.Receipts(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, order := range orders {
		if !slices.ContainsFunc(receipts, func(r warehouse.Receipt) bool { return r.ID == order.ID && r.Done }) {
			return nil, nil, fmt.Errorf("forget order %s is %w: run sluice forget to finish it", order.ID, errBusy)
		}
	}
	return sources, orders, nil
}

// unchanged fails when a change since the hold makes later copies inconsistent with it.
func (b *backup) unchanged(ctx context.Context) error {
	if frozen, err := b.db.Frozen(ctx, b.m.Tables); err != nil || !frozen {
		return cmp.Or(err, errors.New("its frozen tables were dropped, by another backup or manually"))
	}
	sources, orders, err := b.quiet(ctx)
	if err != nil {
		return err
	}
	if len(orders) != len(b.m.Forgets) {
		return errors.New("instances were forgotten since it began, and may be in it")
	}
	for _, s := range b.m.Sources {
		i := slices.IndexFunc(sources, func(one stream.Source) bool { return one.Name == s.Name })
		if i < 0 || sources[i].Revision != s.Revision { // also after a move back
			return fmt.Errorf("source %q was moved to other lanes since it began", s.Name)
		}
	}
	return b.sameLanes(ctx)
}

func (b *backup) moved(n uint64) {
	b.done += n
	b.cfg.Progress(b.done, max(b.total, b.done))
}

// table copies a file of a table, unless the manifest has it.
func (b *backup) table(ctx context.Context, t warehouse.DumpTable, d warehouse.DumpFile) error {
	f := File{Path: filepath.Join("tables", t.Name, d.Name+".native.zst"), Table: t.Name, Name: d.Name}
	if b.m.file(f.Path) != nil {
		return nil
	}
	return b.write(&f, func(to io.Writer) error {
		packed, err := zstd.NewWriter(to, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(1))
		if err != nil {
			return err
		}
		f.Rows, f.Digest, err = b.db.Dump(ctx, t, d, func(block []byte) error {
			_, err := packed.Write(block)
			return err
		})
		return errors.Join(err, packed.Close())
	}, func(path string) error {
		b.moved(f.Rows)
		return f.rows(path, native.Count)
	})
}

func (b *backup) secrets() error {
	for _, name := range b.cfg.Secrets {
		f := File{Path: filepath.Join("secrets", name), Secret: true}
		if b.m.file(f.Path) != nil {
			continue
		}
		content, err := os.ReadFile(filepath.Join(b.cfg.SecretsOf, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = b.write(&f, func(to io.Writer) error { _, err := to.Write(content); return err }, nil)
		}
		if err != nil {
			return fmt.Errorf("copy %s: %w", name, err)
		}
	}
	return nil
}

// saveEvery bounds the work that is repeated after a crash: complete files that the
// manifest does not name yet are written again.
const saveEvery = time.Second

// write writes a file, verifies its checksum and by read, and adds it to the manifest.
func (b *backup) write(f *File, fill func(io.Writer) error, read func(path string) error) error {
	path := filepath.Join(b.cfg.Folder, f.Path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(path+".part", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	hash, count := sha256.New(), new(counter)
	buffered := bufio.NewWriterSize(io.MultiWriter(file, hash, count), 1<<20)
	err = fill(buffered)
	if err = errors.Join(err, buffered.Flush()); err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	f.Bytes, f.SHA256 = int64(*count), hex.EncodeToString(hash.Sum(nil))
	err = f.check(path + ".part")
	if err == nil && read != nil {
		err = read(path + ".part")
	}
	if err != nil {
		return fmt.Errorf("verify the written file: %w", err)
	}
	if err := os.Rename(path+".part", path); err != nil {
		return err
	}
	if err := syncFolder(filepath.Dir(path)); err != nil {
		return err
	}
	b.m.Files = append(b.m.Files, *f)
	if len(b.m.Lanes) == 0 || time.Since(b.saved) < saveEvery { // before the end of the hold a backup starts over
		return nil
	}
	b.saved = time.Now()
	return b.m.save(b.cfg.Folder)
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
