package main

import (
	"context"
	"log/slog"
	"net"

	engine "sluice/pkg/embedded/clickhouse"
)

type clickhouse struct {
	Data       string `default:"./data/clickhouse" help:"Folder of the tables."`
	Listen     string `default:"127.0.0.1:9000" help:"Address of the native protocol; beyond loopback only with --password."`
	HTTP       string `name:"http" default:"127.0.0.1:8123" help:"Address of HTTP; off when empty."`
	User       string `default:"default" help:"The one user."`
	Password   string `help:"Password of the user; better given as the variable."`
	AllowFiles bool   `help:"Let statements leave the database: file(), url(), s3(), remote() and their kin; the process is then not confined to its folder."`
	Library    string `name:"clickhouse-library" help:"File of the engine; found next to the program when empty, and nowhere else."`
}

func (c *clickhouse) Run(ctx context.Context, log *slog.Logger) error {
	cfg := engine.Config{
		Library: c.Library, Data: c.Data, Listen: c.Listen, HTTP: c.HTTP, User: c.User, Password: c.Password, AllowFiles: c.AllowFiles,
	}
	return engine.Serve(ctx, cfg, log, func(native, http net.Addr) {
		attrs := []any{"native", native.String(), "data", c.Data}
		if http != nil {
			attrs = append(attrs, "http", "http://"+http.String())
		}
		log.Info("ClickHouse takes connections", attrs...)
	})
}
