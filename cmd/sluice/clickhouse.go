package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"sluice/cmd/internal/run"
	"sluice/pkg/embedded/clickhouse/library"
	"sluice/pkg/embedded/clickhouse/server"
)

type clickhouse struct {
	Data       string `default:"./data/clickhouse" help:"Folder of the tables."`
	Listen     string `default:"127.0.0.1:9000" help:"Address of the native protocol; beyond loopback only if every user needs a password."`
	HTTP       string `name:"http" default:"127.0.0.1:8123" help:"Address of HTTP; off when empty."`
	User       string `default:"default" help:"The one user, who may do everything; not with --secrets."`
	Password   string `help:"Password of the user; better given as the variable."`
	Secrets    string `help:"Folder with the passwords of the users admin, ingester and analyst, made if missing; without it, on loopback, every client may do everything."`
	Private    bool   `help:"With --secrets: the analyst needs a password too; else a connection without one is the analyst."`
	AllowFiles bool   `help:"Let statements leave the database: file(), url(), s3(), remote() and their kin; the process is then not confined to its folder."`
	Engine
	Library string `name:"clickhouse-library" help:"File of the engine; found next to the program when empty, and nowhere else."`
}

// Engine says what statements of the embedded ClickHouse engine may take.
type Engine struct {
	AnalystMemory int64         `default:"2147483648" help:"Memory of one statement of the analyst in bytes; as much again may go to disk."`
	AnalystTime   time.Duration `default:"60s" help:"How long one statement of the analyst may take."`
	AnalystRows   int64         `default:"1000000" help:"Most rows of one result of the analyst."`
	Slots         int           `name:"clickhouse-slots" default:"64" help:"Statements that ClickHouse runs at a time; more wait for 5 s, then are refused."`
	KeptSlots     int           `name:"clickhouse-kept-slots" default:"8" help:"Of these, how many are for the ingester alone, where users have passwords."`
}

func (c *clickhouse) Run(ctx context.Context, log *slog.Logger) error {
	if c.Secrets != "" {
		if c.Password != "" {
			return errors.New("--secrets and --password: give one of them")
		}
		// Once: confined, the process cannot see the folder any more.
		if !library.Confined() {
			if err := run.MakeSecrets(c.Secrets, run.SecretAdmin, run.SecretIngester, run.SecretAnalyst); err != nil {
				return err
			}
		}
	}
	cfg := server.Config{
		Library: c.Library, Data: c.Data, Listen: c.Listen, HTTP: c.HTTP, User: c.User, Password: c.Password,
		Secrets: c.Secrets, Private: c.Private, AllowFiles: c.AllowFiles,
		Analyst: server.Limits{Memory: c.AnalystMemory, Time: c.AnalystTime, Rows: c.AnalystRows}, Slots: c.Slots, Kept: c.KeptSlots,
	}
	return run.UntilStopped(ctx, server.Serve(ctx, cfg, log, func(native, http net.Addr) {
		attrs := []any{"native", native.String(), "data", c.Data}
		if http != nil {
			attrs = append(attrs, "http", "http://"+http.String())
		}
		log.Info("ClickHouse takes connections", attrs...)
	}))
}
