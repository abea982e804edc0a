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

// Format is the format number of a backup: its folder, manifest and files. A restore reads
// only this one.
const Format = 1

const manifestName = "manifest.json"

// Manifest lists the contents of a backup. It is written first, and rewritten as the
// backup grows, so that an interrupted backup can be resumed.
type Manifest struct {
	Format   int       `json:"format"`
	ID       string    `json:"id"`
	Database string    `json:"database"`
	Begun    time.Time `json:"begun"`
	Ended    time.Time `json:"ended,omitzero"` // zero while it is not complete

	// The moment of the snapshot: the held states of lanes and changes.
	Lanes   []Lane          `json:"lanes,omitempty"`
	Changes flow.LaneState  `json:"changes,omitzero"`
	Sources []stream.Source `json:"sources,omitempty"`

	Schema     warehouse.Schema      `json:"schema,omitzero"`
	Retentions []warehouse.Retention `json:"retentions,omitempty"`
	Expired    string                `json:"expired,omitempty"` // the last stored day whose rows may have expired
	Forgets    []flow.Forget         `json:"forgets,omitempty"` // orders to forget instances
	Tables     []warehouse.DumpTable `json:"tables,omitempty"`
	Models     warehouse.Models      `json:"models,omitzero"` // of the modeller, beside those tables
	Plan       []warehouse.DumpFile  `json:"plan,omitempty"`  // files of tables

	Files  []File            `json:"files,omitempty"`
	Resend []warehouse.Reach `json:"resend,omitempty"` // positions from which sources resend
}

// Lane is a lane at that moment.
type Lane struct {
	Number   int            `json:"lane"`
	First    uint64         `json:"first"` // its first message
	Position flow.LaneState `json:"lane_state"`
}

// needs is the first message that the lane must have after a restore. Earlier messages are
// stored, and outside the deduplication window.
func (l Lane) needs() uint64 {
	return max(min(l.Position.Done+1, max(l.Position.DedupFrom, 1)), l.First)
}

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

	Secret bool `json:"secret,omitempty"` // a secret of the data folder
}

func (m *Manifest) Complete() bool { return !m.Ended.IsZero() }

// file finds a file by its path; nil when missing.
func (m *Manifest) file(path string) *File {
	for i := range m.Files {
		if m.Files[i].Path == path {
			return &m.Files[i]
		}
	}
	return nil
}

// Messages is the number of messages of all streams.
func (m *Manifest) Messages() (n uint64) {
	for _, f := range m.Files {
		n += f.Holds.Messages
	}
	return n
}

// Rows is the number of rows of all tables.
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
		return nil, fmt.Errorf("no backup in %s: %w", folder, err)
	}
	var m Manifest
	if err := json.Unmarshal(content, &m); err != nil {
		// Another format may have other members: its number decides.
		var only struct {
			Format int `json:"format"`
		}
		if json.Unmarshal(content, &only) == nil && only.Format > Format {
			return nil, formatError(folder, only.Format)
		}
		return nil, fmt.Errorf("%s is corrupt: %w", filepath.Join(folder, manifestName), err)
	}
	if m.Format != Format {
		return nil, formatError(folder, m.Format)
	}
	return &m, nil
}

func formatError(folder string, format int) error {
	return fmt.Errorf("the backup in %s has format %d, but this version reads only format %d: use the version that created it", folder, format, Format)
}

// Check verifies the checksum of every file of a complete backup.
func (m *Manifest) Check(ctx context.Context, folder string, progress func(done, total uint64)) error {
	if !m.Complete() {
		return fmt.Errorf("the backup in %s is incomplete: resume it with sluice backup --to %[1]s", folder)
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

func (f *File) check(path string) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the backup is corrupt: file %s is missing", path)
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
	if n != f.Bytes {
		return fmt.Errorf("the backup is corrupt: %s has %d bytes, want %d", path, n, f.Bytes)
	}
	if hex.EncodeToString(hash.Sum(nil)) != f.SHA256 {
		return fmt.Errorf("the backup is corrupt: %s has another checksum than the manifest", path)
	}
	return nil
}

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
		return fmt.Errorf("the backup is corrupt: %s has %d rows, not the %d written", f.Path, n, f.Rows)
	}
	return nil
}

// save replaces the manifest atomically.
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
