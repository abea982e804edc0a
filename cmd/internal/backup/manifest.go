package backup

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/zstd"

	"sluice/cmd/internal/snapshot"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// Format is the number of the format of a backup: that of its folder, of the manifest
// and of the files. A restore reads this one.
const Format = 1

const manifestName = "manifest.json"

// Manifest says what a backup holds. It is written before anything else, and again
// while the backup grows, so that one that was interrupted can be continued.
type Manifest struct {
	Format   int       `json:"format"`
	ID       string    `json:"id"`
	Database string    `json:"database"`
	Begun    time.Time `json:"begun"`
	Ended    time.Time `json:"ended,omitzero"` // zero while it is not complete

	// The moment that all of it is of: where the lanes were held, and where the changes were.
	Lanes   []Lane          `json:"lanes,omitempty"`
	Changes flow.LaneState  `json:"changes,omitzero"`
	Sources []stream.Source `json:"sources,omitempty"`

	Schema     warehouse.Schema      `json:"schema,omitzero"`
	Retentions []warehouse.Retention `json:"retentions,omitempty"`
	Expired    string                `json:"expired,omitempty"` // the last stored day of which rows may have expired
	Forgets    []flow.Forget         `json:"forgets,omitempty"` // which instances readers of the lanes skip
	Tables     []warehouse.DumpTable `json:"tables,omitempty"`
	Models     warehouse.Models      `json:"models,omitzero"` // of the modeller, beside those tables
	Plan       []warehouse.DumpFile  `json:"plan,omitempty"`  // files of tables

	Files  []File            `json:"files,omitempty"`
	Resend []warehouse.Reach `json:"resend,omitempty"` // from where sources send again
}

// Lane is a lane at that moment.
type Lane struct {
	Number   int            `json:"lane"`
	First    uint64         `json:"first"` // message that it held
	Position flow.LaneState `json:"lane_state"`
}

// needs is the first message that the lane must have after a restore: those before
// are stored, and tell nothing about those to come.
func (l Lane) needs() uint64 {
	return max(min(l.Position.Done+1, max(l.Position.DedupFrom, 1)), l.First)
}

// File is a file of a backup.
type File struct {
	Path   string `json:"path"` // in the folder
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`

	Table  string `json:"table,omitempty"` // rows of a table, compressed FORMAT Native
	Name   string `json:"name,omitempty"`  // of warehouse.DumpFile
	Rows   uint64 `json:"rows,omitempty"`
	Digest uint64 `json:"digest,omitempty"` // sum of the hashes of the rows

	Stream string          `json:"stream,omitempty"` // a snapshot of a stream
	Config json.RawMessage `json:"config,omitempty"`
	Holds  snapshot.State  `json:"holds,omitzero"` // when the snapshot began

	Secret bool `json:"secret,omitempty"` // a file of the data folder, for the next one
}

// Complete says whether the backup was ended.
func (m *Manifest) Complete() bool { return !m.Ended.IsZero() }

// file finds a file by its path, nil when there is none.
func (m *Manifest) file(path string) *File {
	for i := range m.Files {
		if m.Files[i].Path == path {
			return &m.Files[i]
		}
	}
	return nil
}

// Messages is how many messages the streams hold.
func (m *Manifest) Messages() (n uint64) {
	for _, f := range m.Files {
		n += f.Holds.Messages
	}
	return n
}

// Rows is how many rows the tables have.
func (m *Manifest) Rows() (n uint64) {
	for _, f := range m.Files {
		n += f.Rows
	}
	return n
}

// Bytes is the size of all files.
func (m *Manifest) Bytes() (n int64) {
	for _, f := range m.Files {
		n += f.Bytes
	}
	return n
}

// Open reads the manifest of a backup; an error of fs.ErrNotExist when there is none.
func Open(folder string) (*Manifest, error) {
	content, err := os.ReadFile(filepath.Join(folder, manifestName))
	if err != nil {
		return nil, fmt.Errorf("%s holds no backup: %w", folder, err)
	}
	var m Manifest
	if err := json.Unmarshal(content, &m); err != nil {
		// The number of the format is read first: the rest may have changed with it.
		var only struct {
			Format int `json:"format"`
		}
		if json.Unmarshal(content, &only) == nil && only.Format > Format {
			return nil, formatError(folder, only.Format)
		}
		return nil, fmt.Errorf("%s is damaged: %w", filepath.Join(folder, manifestName), err)
	}
	if m.Format != Format {
		return nil, formatError(folder, m.Format)
	}
	return &m, nil
}

func formatError(folder string, format int) error {
	return fmt.Errorf("the backup in %s has format %d, and this version reads format %d: use the version that has made it", folder, format, Format)
}

// Check reads every file of a complete backup, and fails unless all of them are what
// they were.
func (m *Manifest) Check(ctx context.Context, folder string, progress func(done, total uint64)) error {
	if !m.Complete() {
		return fmt.Errorf("the backup in %s is not complete: run sluice backup --to %[1]s again, which resumes it", folder)
	}
	var read int64
	for _, f := range m.Files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !filepath.IsLocal(f.Path) {
			return fmt.Errorf("%s names a file outside of the backup: %q", manifestName, f.Path)
		}
		if err := f.check(filepath.Join(folder, f.Path)); err != nil {
			return err
		}
		read += f.Bytes
		progress(uint64(read), uint64(m.Bytes()))
	}
	return nil
}

// check reads a file and compares it with what was written.
func (f *File) check(path string) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the backup lacks its file %s", path)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	hash := sha256.New()
	n, err := io.Copy(hash, file)
	if err != nil {
		return err
	}
	if n != f.Bytes || hex.EncodeToString(hash.Sum(nil)) != f.SHA256 {
		return fmt.Errorf("%s is damaged: its %d bytes are not the %d that were written", path, n, f.Bytes)
	}
	return nil
}

// rows reads the rows of a file.
func (f *File) rows(path string, read func(io.Reader) (uint64, error)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	plain, err := zstd.NewReader(bufio.NewReaderSize(file, 1<<20), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer plain.Close()
	n, err := read(plain)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	if n != f.Rows {
		return fmt.Errorf("%s has %d rows, and %d were written", f.Path, n, f.Rows)
	}
	return nil
}

// save writes the manifest, whole or not at all.
func (m *Manifest) save(folder string) error {
	content, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return err
	}
	path := filepath.Join(folder, manifestName)
	if err := writeSynced(path+".part", append(content, '\n')); err != nil {
		return err
	}
	if err := os.Rename(path+".part", path); err != nil {
		return err
	}
	return syncFolder(folder)
}

func writeSynced(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Sync(), file.Close())
}

func syncFolder(folder string) error {
	dir, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
