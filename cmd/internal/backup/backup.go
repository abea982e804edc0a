// Package backup copies a running installation to a folder, and makes a new one of it.
//
// A backup is of one moment, the cut: where the lanes stood when no block was on its
// way. What is copied when follows from it:
//
//	cut       every lane is held between two blocks, for as long as it takes to read
//	          the positions and the tables that are sums; then the lanes go on
//	folds     have heard of records behind the cut by then. They may hear a thing twice
//	streams   users and fields, dead letters, then the lanes: they end behind all that
//	          the folds have heard, and those before end before the lanes do
//	rehearsal the streams are restored into a server of their own and read to the end
//	records   up to the cut, day by day: a row says where it came in
//
// So a restored installation stands where the cut was, reads what is behind it in its
// lanes, and stores it once, like any ingester that takes a lane over. What sources
// have sent since they send again; the manifest says from which position.
//
// Every file has its checksum and is read again as soon as it is written. An interrupted
// backup goes on behind the last whole file; before the cut is complete it begins anew.
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
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"

	"sluice/pkg/flow"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
	"sluice/pkg/warehouse/native"
)

// Config says how.
type Config struct {
	Folder       string
	Hold         time.Duration // how long a lane stands still if the backup dies; default 1 min
	Wait         time.Duration // for blocks that are claimed; default 30 s
	Keep         time.Duration // how long the lanes keep what is still to be copied if the backup dies; default 15 min
	RepeatWindow time.Duration // as the ingesters were told; default 10 min
	Secrets      []string      // files to copy too, of SecretsOf
	SecretsOf    string        // folder

	Progress func(done, total uint64) // rows and messages; default none
	Log      *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Hold, c.Wait = cmp.Or(c.Hold, time.Minute), cmp.Or(c.Wait, 30*time.Second)
	c.Keep, c.RepeatWindow = cmp.Or(c.Keep, 15*time.Minute), cmp.Or(c.RepeatWindow, 10*time.Minute)
	if c.Progress == nil {
		c.Progress = func(uint64, uint64) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// overlap is how much of what came last a source is asked to send again, although the
// backup has it: of requests that are sent at the same time an earlier one may come in
// after a later one.
const overlap = time.Minute

// backup is one run.
type backup struct {
	cfg       Config
	stream    *stream.Stream
	positions *stream.Positions
	nc        *nats.Conn
	db        *warehouse.DB
	m         *Manifest
	saved     time.Time
	done      uint64
	total     uint64
}

// Run makes a backup, or goes on with one. The connection is that of the operator, as
// that of s: only it may copy streams.
func Run(ctx context.Context, s *stream.Stream, nc *nats.Conn, db *warehouse.DB, cfg Config) (*Manifest, error) {
	b := &backup{cfg: cfg.withDefaults(), stream: s, positions: stream.NewPositions(s), nc: nc, db: db}
	if err := b.open(); err != nil {
		return nil, err
	}
	if len(b.m.Lanes) == 0 {
		if err := b.cut(ctx); err != nil {
			return b.m, fmt.Errorf("copy where the lanes stand: %w", err)
		}
	} else if err := b.stillThere(ctx); err != nil {
		return b.m, fmt.Errorf("the backup in %s cannot be continued: %w: delete it and begin again", cfg.Folder, err)
	}
	// From here on the lanes keep what is to be copied.
	working, stop := context.WithCancelCause(ctx)
	var keeping sync.WaitGroup
	keeping.Go(func() { stop(b.keep(working)) })
	err := b.rest(working)
	if cause := context.Cause(working); cause != nil && err != nil {
		err = cause
	}
	stop(nil)
	keeping.Wait()
	return b.m, errors.Join(err, b.release(ctx))
}

// rest is all that comes after the cut.
func (b *backup) rest(ctx context.Context) error {
	b.plan()
	for _, t := range b.m.Tables {
		if t.Keeping == warehouse.Ahead {
			if err := b.table(ctx, t, warehouse.Piece{Table: t.Name, Name: "all"}); err != nil {
				return err
			}
		}
	}
	if err := b.streams(ctx); err != nil {
		return err
	}
	if err := b.records(ctx); err != nil {
		return err
	}
	if err := b.secrets(); err != nil {
		return err
	}
	if err := b.stillThere(ctx); err != nil {
		return fmt.Errorf("the backup in %s is of no use: %w: delete it and begin again", b.cfg.Folder, err)
	}
	b.m.Ended = time.Now().UTC()
	return b.m.save(b.cfg.Folder)
}

// open reads the manifest of a backup that was begun, or begins one in an empty folder.
func (b *backup) open() error {
	folder := b.cfg.Folder
	m, err := Open(folder)
	switch {
	case err == nil && m.Complete():
		return fmt.Errorf("%s holds a backup of %s, which is complete: choose another folder", folder, m.Begun.Format(time.RFC3339))
	case err == nil:
		if m.Database != b.db.Database() {
			return fmt.Errorf("the backup in %s is of database %s, not of %s", folder, m.Database, b.db.Database())
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
		return fmt.Errorf("%s is not empty, and holds no backup: there is %s", folder, there[i].Name())
	}
	b.m = &Manifest{Format: Format, ID: strings.ToLower(rand.Text()[:16]), Database: b.db.Database(), Begun: time.Now().UTC()}
	return b.m.save(folder)
}

// cuts is how often a cut is tried: once, unless a lane has moved although it was held.
const cuts = 5

// cut copies what is right at one moment only.
func (b *backup) cut(ctx context.Context) error {
	by := "backup-" + b.m.ID
	m := b.m
	var err error
	if m.Migrations, err = b.db.Migrations(ctx); err != nil {
		return err
	}
	if m.Retentions, err = b.db.Retentions(ctx); err != nil {
		return err
	}
	if m.Tables, err = b.db.DumpTables(ctx); err != nil {
		return err
	}
	for range cuts {
		lanes, moved, err := b.tryCut(ctx, by)
		if err != nil {
			return err
		}
		if !moved {
			m.Lanes = lanes
			return m.save(b.cfg.Folder)
		}
	}
	return fmt.Errorf("in %d attempts the lanes moved while they were held: does every ingester run this version?", cuts)
}

func (b *backup) tryCut(ctx context.Context, by string) (lanes []Lane, moved bool, err error) {
	m := b.m
	m.Files = nil
	defer func() { err = errors.Join(err, b.positions.ReleaseAll(ctx, by)) }()
	held, err := b.positions.HoldAll(ctx, by, b.cfg.Hold, b.cfg.Wait)
	if err != nil {
		return nil, false, err
	}
	holding, stop := context.WithCancel(ctx)
	var extending sync.WaitGroup
	extending.Go(func() { b.extend(holding, by, held) })
	defer extending.Wait() // before the lanes are let go
	defer stop()

	if m.Changes, err = stream.NewChangePositions(b.stream).Read(ctx, 0); err != nil {
		return nil, false, err
	}
	for _, info := range b.stream.Lanes() {
		pos := held[info.Number]
		if pos.Incarnation == 0 || pos.Stream == "" {
			return nil, false, fmt.Errorf("lane %d was never worked on: start an ingester first", info.Number)
		}
		pos.Owner, pos.Hold = "", nil
		lanes = append(lanes, Lane{info.Number, info.First, pos})
		if err := b.keepLane(ctx, lanes[len(lanes)-1]); err != nil {
			return nil, false, err
		}
	}
	m.Sources = b.stream.Sources()
	if i := slices.IndexFunc(m.Sources, func(s stream.Source) bool { return len(s.Moving) > 0 }); i >= 0 {
		return nil, false, fmt.Errorf("source %q is being moved to other lanes: wait until that is done, or take it back with sluice lanes spread --stay", m.Sources[i].Name)
	}
	if m.Receipts, err = b.receipts(ctx); err != nil {
		return nil, false, err
	}
	for _, t := range m.Tables {
		if t.Keeping == warehouse.AtOnce {
			if err := b.table(ctx, t, warehouse.Piece{Table: t.Name, Name: "all"}); err != nil {
				return nil, false, err
			}
		}
	}
	if m.Resend, err = b.db.Reaches(ctx, overlap); err != nil {
		return nil, false, err
	}
	for _, l := range lanes {
		now, err := b.positions.Read(ctx, l.Number)
		if err != nil {
			return nil, false, err
		}
		if !samePosition(now, l.Position) {
			return nil, true, nil
		}
	}
	return lanes, false, nil
}

// samePosition says whether nothing was claimed or stored between two positions.
func samePosition(a, b flow.Position) bool {
	for _, p := range []*flow.Position{&a, &b} {
		p.Owner, p.Hold, p.Revision = "", nil, 0
	}
	return reflect.DeepEqual(a, b)
}

// extend holds the lanes for as long as the cut takes. One that gets away is noticed by
// its position.
func (b *backup) extend(ctx context.Context, by string, held map[int]flow.Position) {
	tick := time.NewTicker(b.cfg.Hold / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for lane := range held {
			if _, err := b.positions.Hold(ctx, lane, by, time.Now().Add(b.cfg.Hold)); err != nil && ctx.Err() == nil {
				b.cfg.Log.Warn("hold a lane for longer", "lane", lane, "error", err)
			}
		}
	}
}

// receipts counts what was forgotten. What is in the middle of it has no moment that
// could be copied.
func (b *backup) receipts(ctx context.Context) (int, error) {
	all, err := b.db.Receipts(ctx)
	for _, r := range all {
		if !r.Done {
			return 0, fmt.Errorf("receipt %s was begun and is not finished: run sluice forget first", r.ID)
		}
	}
	return len(all), err
}

// keep asks for what is to be copied again and again, until ctx ends.
func (b *backup) keep(ctx context.Context) error {
	for {
		for _, l := range b.m.Lanes {
			if err := b.keepLane(ctx, l); err != nil && ctx.Err() == nil {
				b.cfg.Log.Warn("ask a lane to keep its messages", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(b.cfg.Keep / 3):
		}
	}
}

func (b *backup) keepLane(ctx context.Context, l Lane) error {
	from := l.needs()
	if l.Number == 0 && b.m.Changes.Incarnation > 0 {
		from = min(from, b.m.Changes.Done+1)
	}
	return b.stream.Keep(ctx, l.Number, from, b.cfg.Keep)
}

func (b *backup) release(ctx context.Context) (all error) {
	if !b.m.Complete() {
		return nil // it may be continued
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for _, l := range b.m.Lanes {
		all = errors.Join(all, b.stream.LetGo(ctx, l.Number))
	}
	return all
}

// stillThere fails when something happened since the cut that what is copied later
// does not fit to.
func (b *backup) stillThere(ctx context.Context) error {
	receipts, err := b.receipts(ctx)
	if err != nil {
		return err
	}
	if receipts != b.m.Receipts {
		return errors.New("records were forgotten since it was begun, and may be in it")
	}
	if err := b.stream.Refresh(ctx); err != nil {
		return err
	}
	if n := len(b.stream.LaneNumbers()); n != len(b.m.Lanes) {
		return fmt.Errorf("there were %d lanes when it was begun, and now there are %d", len(b.m.Lanes), n)
	}
	for _, l := range b.m.Lanes {
		now, err := b.positions.Read(ctx, l.Number)
		if err != nil {
			return err
		}
		if now.Stream != l.Position.Stream || now.Incarnation != l.Position.Incarnation || now.Done < l.Position.Done {
			return fmt.Errorf("lane %d was made again or reset since it was begun, or this is another installation", l.Number)
		}
	}
	now := b.stream.Sources()
	for _, s := range b.m.Sources {
		i := slices.IndexFunc(now, func(one stream.Source) bool { return one.Name == s.Name })
		if i < 0 || !slices.Equal(now[i].Lanes, s.Lanes) || len(now[i].Moving) > 0 {
			return fmt.Errorf("source %q was moved to other lanes since it was begun", s.Name)
		}
	}
	return nil
}

// plan sums up what is to be done, for the progress.
func (b *backup) plan() {
	for _, l := range b.stream.Lanes() {
		b.total += 2 * l.Messages // copied, and read
	}
	for _, p := range b.m.Pieces {
		b.total += p.Rows
	}
}

func (b *backup) moved(n uint64) {
	b.done += n
	b.cfg.Progress(b.done, max(b.total, b.done))
}

// table copies a piece of a table, unless that is done.
func (b *backup) table(ctx context.Context, t warehouse.DumpTable, p warehouse.Piece) error {
	f := File{Path: filepath.Join("tables", t.Name, p.Name+".native.zst"), Table: t.Name, Piece: p.Name}
	if b.m.file(f.Path) != nil {
		return nil
	}
	return b.write(&f, func(to io.Writer) error {
		packed, err := zstd.NewWriter(to, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(1))
		if err != nil {
			return err
		}
		before := b.done
		f.Rows, f.Digest, err = b.db.Dump(ctx, t, p, func(block []byte) error {
			_, err := packed.Write(block)
			return err
		})
		b.done = before
		b.moved(f.Rows)
		return errors.Join(err, packed.Close())
	}, func(path string) error { return f.rows(path, native.Count) })
}

// records copies flow.records up to the cut.
func (b *backup) records(ctx context.Context) error {
	i := slices.IndexFunc(b.m.Tables, func(t warehouse.DumpTable) bool { return t.Keeping == warehouse.ByPlace })
	if i < 0 {
		return errors.New("there is no table of records")
	}
	if b.m.Pieces == nil {
		var cut warehouse.Cut
		for _, l := range b.m.Lanes {
			cut = append(cut, warehouse.Start{Lane: l.Number, Incarnation: l.Position.Incarnation, First: l.Position.Done + 1})
		}
		var err error
		if b.m.Pieces, err = b.db.Pieces(ctx, cut); err != nil {
			return err
		}
		for _, p := range b.m.Pieces {
			b.total += p.Rows
		}
		if err := b.m.save(b.cfg.Folder); err != nil {
			return err
		}
	}
	for _, p := range b.m.Pieces {
		if err := b.table(ctx, b.m.Tables[i], p); err != nil {
			return err
		}
	}
	return nil
}

// secrets copies files of the data folder, if that is wanted.
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

// saveEvery bounds how much of a backup is done again after a crash: whole files that
// the manifest does not name yet are written again.
const saveEvery = time.Second

// write makes a file, reads it again, also as read wants, and notes it in the manifest.
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
		return fmt.Errorf("read back what was written: %w", err)
	}
	if err := os.Rename(path+".part", path); err != nil {
		return err
	}
	if err := syncFolder(filepath.Dir(path)); err != nil {
		return err
	}
	b.m.Files = append(b.m.Files, *f)
	if len(b.m.Lanes) == 0 || time.Since(b.saved) < saveEvery { // without a cut it begins anew
		return nil
	}
	b.saved = time.Now()
	return b.m.save(b.cfg.Folder)
}

// counter counts what is written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
