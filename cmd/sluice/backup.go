package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/backup"
	"sluice/cmd/internal/run"
	"sluice/pkg/dial"
	"sluice/pkg/embedded/clickhouse/library"
	"sluice/pkg/embedded/clickhouse/supervise"
	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/option"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

type backupCmd struct {
	To          string        `required:"" help:"Folder of the backup: empty or missing, or of an interrupted backup, which is resumed."`
	WithSecrets bool          `help:"Also copy the access token, the passwords and the fingerprint key from --data, in plain text: every reader of the backup can use them."`
	Hold        time.Duration `default:"1m" help:"Maximum pause of the lanes if this command dies while it holds them."`
	Wait        time.Duration `default:"10m" help:"How long to wait for moves of sources and for sluice forget to finish."`
	Keep        time.Duration `default:"15m" help:"How long the lanes are not purged if this command dies; until then the backup can be resumed."`
	JSON        bool          `name:"json" help:"Print the contents of the backup as JSON."`
	run.Operator
	run.NATS
	run.ClickHouse
}

// secretFiles are the secrets of a data folder. Only the fingerprint key cannot be
// recreated: stored fingerprints of users' secret keys depend on it.
func secretFiles(data string) ([]string, error) {
	names := []string{"token", tokensName, "fingerprint.key"}
	folder, err := os.ReadDir(filepath.Join(data, "secrets"))
	if err != nil {
		return nil, fmt.Errorf("--with-secrets: %w", err)
	}
	for _, entry := range folder {
		names = append(names, filepath.Join("secrets", entry.Name()))
	}
	return names, nil
}

func (c *backupCmd) Run(ctx context.Context, log *slog.Logger) error {
	cfg := backup.Config{Folder: c.To, Hold: c.Hold, Wait: c.Wait, Keep: c.Keep, SecretsOf: c.Data, Log: log}
	if c.WithSecrets {
		var err error
		if cfg.Secrets, err = secretFiles(c.Data); err != nil {
			return err
		}
	}
	db, err := tablesAt(c.Operator, c.ClickHouse, log) // ClickHouse may be down while the backup waits for a move
	if err != nil {
		return err
	}
	defer db.Close()
	return run.WithNATS(ctx, c.Operator, c.NATS, log, func(nc *nats.Conn, reg prometheus.Registerer) error {
		opening, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		s, err := stream.Open(opening, nc, stream.Config{}, log, reg)
		if err != nil {
			return err
		}
		bar := newBar(1, "copying")
		cfg.Progress = shownBy(bar)
		m, err := backup.Run(ctx, s, nc, db, cfg)
		if err = errors.Join(err, bar.Finish()); err != nil {
			return err
		}
		return printBackup(os.Stdout, m, c.JSON, fmt.Sprintf("%s holds", c.To))
	})
}

// printBackup prints the contents of a backup, and the positions from which to resend.
func printBackup(out io.Writer, m *backup.Manifest, asJSON bool, doing string) error {
	if asJSON {
		short := *m
		short.Files, short.Plan, short.Tables = nil, nil, nil
		return json.NewEncoder(out).Encode(short)
	}
	fmt.Fprintf(out, "%s %s as it was at %s: %d rows in tables, %d messages in streams, %.1f MB.\n", doing, m.Database, m.Begun.Format(time.RFC3339), m.Rows(), m.Messages(), float64(m.Bytes())/1e6)
	if len(m.Resend) == 0 {
		_, err := fmt.Fprintln(out, "It has no records.")
		return err
	}
	fmt.Fprintln(out, "After a restore each source must resend from these positions; stored records are deduplicated:")
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "source\tpartition\tfrom position\tlast position\treceived\t")
	for _, r := range m.Resend {
		partition, from, last := fmt.Sprint(r.Partition), fmt.Sprint(r.From), fmt.Sprint(r.Last)
		if r.Partition == 0 {
			partition, from, last = "none", "-", "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t\n", r.Source, partition, from, last, r.Until.Format(time.RFC3339Nano))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if slices.ContainsFunc(m.Resend, func(r warehouse.Reach) bool { return r.Partition == 0 }) {
		fmt.Fprintln(out, "\nRecords without a position: resend those sent since a minute before the time received.")
	}
	return nil
}

type restoreCmd struct {
	From           string `required:"" help:"Folder of a complete backup."`
	Into           string `help:"Data folder for sluice up: empty or missing, or of an interrupted restore, which is resumed. Without it the servers at --nats and --clickhouse are restored."`
	Check          bool   `help:"Only verify the checksums of the backup, and print its contents and the positions from which sources would resend." env:"-"`
	StreamReplicas int    `default:"0" help:"Replicas of every stream: 1, 3 or 5; 0: as in the backup, and 1 with --into."`
	Library        string `name:"clickhouse-library" help:"With --into: file of the ClickHouse engine; empty: the one next to the program."`
	JSON           bool   `name:"json" help:"Print the restored contents as JSON."`
	run.Operator
	run.NATS
	run.ClickHouse
}

func (c *restoreCmd) Run(ctx context.Context, log *slog.Logger) error {
	m, err := backup.Open(c.From)
	if err != nil {
		return err
	}
	bar := newBar(1, "reading the backup")
	if err := errors.Join(m.Check(ctx, c.From, shownBy(bar)), bar.Finish()); err != nil {
		return err
	}
	if c.Check {
		return printBackup(os.Stdout, m, c.JSON, fmt.Sprintf("%s is complete and holds", c.From))
	}
	bar = newBar(1, "restoring")
	cfg := backup.RestoreConfig{Folder: c.From, Replicas: c.StreamReplicas, Streams: stream.Config{}, Progress: shownBy(bar), Log: log}
	if c.Into != "" {
		err = c.intoFolder(ctx, m, cfg, log)
	} else {
		err = c.intoServers(ctx, m, cfg, log)
	}
	if err = errors.Join(err, bar.Finish()); err != nil {
		return err
	}
	return printBackup(os.Stdout, m, c.JSON, "Restored")
}

func (c *restoreCmd) intoServers(ctx context.Context, m *backup.Manifest, cfg backup.RestoreConfig, log *slog.Logger) error {
	db, err := openTables(ctx, c.Operator, c.ClickHouse, log)
	if err != nil {
		return err
	}
	defer db.Close()
	return run.WithNATS(ctx, c.Operator, c.NATS, log, func(nc *nats.Conn, _ prometheus.Registerer) error {
		connecting, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if err := stream.Connected(connecting, nc); err != nil {
			return fmt.Errorf("--nats: %w", err)
		}
		return backup.Restore(ctx, m, nc, db, cfg)
	})
}

// restoringName is the file that marks a data folder as incompletely restored.
const restoringName = "restoring"

// intoFolder restores into a data folder, through temporary servers.
func (c *restoreCmd) intoFolder(ctx context.Context, m *backup.Manifest, cfg backup.RestoreConfig, log *slog.Logger) error {
	file, err := library.Locate(c.Library)
	if err != nil {
		return err
	}
	mark := filepath.Join(c.Into, restoringName)
	if err := beginInto(c.Into, mark, m.ID); err != nil {
		return fmt.Errorf("--into: %w", err)
	}
	if err := run.MakeFolder(c.Into); err != nil {
		return fmt.Errorf("--into: %w", err)
	}
	if err := m.Secrets(c.From, c.Into); err != nil {
		return err
	}
	engine, err := freeAddress()
	if err != nil {
		return err
	}
	u := &up{Data: c.Into, ClickHouse: engine, Private: true}
	option.Defaults(&u.Statements)
	if err := u.makeSecrets(); err != nil {
		return err
	}
	users, err := natsUsers(u.secrets())
	if err != nil {
		return err
	}
	server, err := embedded.Start(embedded.Config{Data: filepath.Join(c.Into, "nats"), Users: users}, log)
	if err != nil {
		return err
	}
	defer server.Shutdown()
	nc, err := server.Connect(as(users, "operator").Options(log, dial.NewMetrics(prometheus.NewRegistry()))...)
	if err != nil {
		return err
	}
	defer nc.Close()
	password, err := run.ReadSecret(u.secrets(), run.SecretAdmin)
	if err != nil {
		return err
	}
	address := url.URL{Scheme: "clickhouse", User: url.UserPassword("admin", password), Host: engine, Path: "/" + m.Database}
	db, err := warehouse.Open(warehouse.Config{URL: address.String(), QueryTimeout: queryTime}, log, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	defer db.Close()
	supervisor := supervise.New(supervise.Config{Args: u.engineArgs(file), Env: withoutOurs(os.Environ()), Probe: db.Answers}, log)
	cfg.Replicas = cmp.Or(cfg.Replicas, 1)
	err = run.RunInOrder(ctx, func(ctx context.Context) error {
		if err := supervisor.Ready(ctx); err != nil {
			return err
		}
		return backup.Restore(ctx, m, nc, db, cfg)
	}, supervisor.Run)
	if err != nil {
		return err
	}
	return os.Remove(mark)
}

// beginInto marks an empty folder as being restored, or accepts one marked for this
// backup.
func beginInto(folder, mark, id string) error {
	marked, err := os.ReadFile(mark)
	if err == nil && strings.TrimSpace(string(marked)) == id {
		return nil
	}
	if err == nil {
		return fmt.Errorf("%s is an incomplete restore of another backup, %s: finish that restore, or delete the folder", folder, bytes.TrimSpace(marked))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	there, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	if len(there) > 0 {
		return fmt.Errorf("%s is not empty, it has %s: choose an empty or missing folder", folder, there[0].Name())
	}
	return os.WriteFile(mark, []byte(id+"\n"), 0o600)
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
