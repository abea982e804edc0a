package backup_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/cmd/internal/backup"
	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

func nothing(uint64, uint64) {}

// write makes a backup of one file, and returns its folder.
func write(t *testing.T, change func(m *backup.Manifest)) string {
	t.Helper()
	folder := t.TempDir()
	m := &backup.Manifest{Format: backup.Format, ID: "one", Begun: time.Now(), Ended: time.Now(),
		Files: []backup.File{{Path: "file", Bytes: 4, SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte("rows")))}}}
	change(m)
	content, err := json.MarshalIndent(m, "", " ")
	fatal.If(t, err)
	for name, content := range map[string][]byte{"manifest.json": content, "file": []byte("rows")} {
		fatal.If(t, os.WriteFile(filepath.Join(folder, name), content, 0o600))
	}
	return folder
}

func TestABackupIsReadBeforeItIsRestored(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*backup.Manifest)
		damage func(folder string) error
		says   string // part of the error; empty: valid
	}{
		"whole":             {},
		"of a later format": {change: func(m *backup.Manifest) { m.Format = 2 }, says: "has format 2, but this version reads only format 1"},
		"not complete":      {change: func(m *backup.Manifest) { m.Ended = time.Time{} }, says: "is incomplete: resume it with sluice backup"},
		"a file is outside": {change: func(m *backup.Manifest) { m.Files[0].Path = "../file" }, says: "outside of the backup"},
		"a file is gone":    {damage: func(folder string) error { return os.Remove(filepath.Join(folder, "file")) }, says: "is missing"},
		"a file is shorter": {damage: func(folder string) error { return os.Truncate(filepath.Join(folder, "file"), 3) }, says: "3 bytes, want 4"},
		"a bit is another":  {damage: func(folder string) error { return os.WriteFile(filepath.Join(folder, "file"), []byte("sows"), 0o600) }, says: "another checksum than the manifest"},
		"no manifest":       {damage: func(folder string) error { return os.Remove(filepath.Join(folder, "manifest.json")) }, says: "no backup in"},
		"half a manifest":   {damage: func(folder string) error { return os.Truncate(filepath.Join(folder, "manifest.json"), 20) }, says: "manifest.json is corrupt"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := write(t, func(m *backup.Manifest) {
				if c.change != nil {
					c.change(m)
				}
			})
			if c.damage != nil {
				fatal.If(t, c.damage(folder))
			}
			m, err := backup.Open(folder)
			if err == nil {
				err = m.Check(t.Context(), folder, nothing)
			}
			expect.Not(t, c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)), "got %v, want %q", err, c.says)
		})
	}
}

// TestAStreamIsTheSameAfterIt: sequences, times, headers and holes.
func TestAStreamIsTheSameAfterIt(t *testing.T) {
	t.Parallel()
	serve := func() (*nats.Conn, jetstream.JetStream) {
		server, err := embedded.Start(embedded.Config{Data: t.TempDir()}, slog.New(slog.DiscardHandler))
		fatal.If(t, err)
		t.Cleanup(server.Shutdown)
		nc, err := server.Connect()
		fatal.If(t, err)
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc)
		fatal.If(t, err)
		return nc, js
	}
	nc, js := serve()
	made, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "FLOW_0", Subjects: []string{"flow.0.>"}, Storage: jetstream.FileStorage})
	fatal.If(t, err)
	for i := range 50 { // more than one piece of a snapshot
		msg := &nats.Msg{Subject: "flow.0.record", Header: nats.Header{"Number": {fmt.Sprint(i)}}, Data: make([]byte, 100<<10)}
		if _, err := js.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
	fatal.If(t, made.Purge(t.Context(), jetstream.WithPurgeSequence(5)))
	fatal.If(t, made.SecureDeleteMsg(t.Context(), 20))
	folder := t.TempDir()
	f := backup.File{Stream: "FLOW_0"}
	fatal.If(t, backup.Snapshot(t.Context(), nc, &f, folder))
	other, otherJS := serve()
	fatal.If(t, f.RestoreStream(t.Context(), other, folder))
	is, err := otherJS.Stream(t.Context(), "FLOW_0")
	fatal.If(t, err)
	now := is.CachedInfo()
	expect.Not(t, now.State.FirstSeq != 5 || now.State.LastSeq != 50 || now.State.Msgs != 45 || now.State.NumDeleted != 1, "holds %+v, want 5 to 50 without 20", now.State)
	for _, seq := range []uint64{5, 19, 21, 50} {
		a, err := made.GetMsg(t.Context(), seq)
		fatal.If(t, err)
		b, err := is.GetMsg(t.Context(), seq)
		fatal.If(t, err)
		expect.Equal(t, fmt.Sprintf("message %d", seq), a, b)
	}
	if err := f.RestoreStream(t.Context(), other, folder); err == nil {
		t.Error("a stream was restored over another")
	}
	if err := backup.Snapshot(t.Context(), nc, &backup.File{Stream: "FLOW_1"}, folder); err == nil || !strings.Contains(err.Error(), "stream not found") {
		t.Errorf("copying a stream that is not there: %v", err)
	}
}
