package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/schollz/progressbar/v3"

	"sluice/cmd/internal/run"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// installation has the options of commands that use both lanes and tables.
type installation struct {
	run.Operator
	run.NATS
	run.ClickHouse
}

// reading has the options of commands that only read, over ClickHouse's HTTP.
type reading struct {
	ClickHouse string `name:"clickhouse-http" default:"127.0.0.1:8123" help:"Address of ClickHouse's HTTP: host:8123 or https://user@host:8443/database; default database flow."`
	PassFile   string `name:"clickhouse-password-file" type:"existingfile" help:"File with the password of the user in --clickhouse-http, one line."`
	run.Operator
}

// as is the address with the user and password that find returns.
func (r reading) as(find func(run.ClickHouse) (warehouse.Config, error)) (string, error) {
	clickhouse := run.ClickHouse{PasswordFile: r.PassFile}
	clickhouse.Warehouse.URL = r.ClickHouse
	if !strings.Contains(r.ClickHouse, "://") {
		clickhouse.Warehouse.URL = "http://" + r.ClickHouse
	}
	login, err := find(clickhouse)
	return login.URL, err
}

// between is a range of times from two flags; either may be missing.
func between(ctx context.Context, since, until moment) (from, to time.Time, err error) {
	now := func(context.Context) (time.Time, error) { return time.Now(), nil }
	if from, err = since.by(ctx, now); err == nil {
		to, err = until.by(ctx, now)
	}
	if err == nil && !from.IsZero() && !to.IsZero() && !from.Before(to) {
		err = fmt.Errorf("--from %s is not before --to %s", from.UTC().Format(time.RFC3339Nano), to.UTC().Format(time.RFC3339Nano))
	}
	return from, to, err
}

// queryTime bounds one query of a command that reads whole tables.
const queryTime = 15 * time.Minute

// tablesAt opens the database without a query: it may be down. The caller closes it.
func tablesAt(operator run.Operator, clickhouse run.ClickHouse, log *slog.Logger) (*warehouse.DB, error) {
	cfg, err := operator.Warehouse(clickhouse)
	if err != nil {
		return nil, err
	}
	cfg.QueryTimeout = queryTime
	return warehouse.Open(cfg, log, prometheus.NewRegistry())
}

// openTables is tablesAt for tables of this program's format.
func openTables(ctx context.Context, operator run.Operator, clickhouse run.ClickHouse, log *slog.Logger) (*warehouse.DB, error) {
	db, err := tablesAt(operator, clickhouse, log)
	if err != nil {
		return nil, err
	}
	if err := db.Compatible(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// with opens both while do runs. window is the deduplication window of requests; 0 is the default.
func (i installation) with(ctx context.Context, window time.Duration, log *slog.Logger, do func(*warehouse.DB, *stream.Stream) error) error {
	db, err := openTables(ctx, i.Operator, i.ClickHouse, log)
	if err != nil {
		return err
	}
	defer db.Close()
	return run.WithStream(ctx, i.Operator, i.NATS, stream.Config{RepeatWindow: window}, log, func(s *stream.Stream) error { return do(db, s) })
}

// moment is a time on the command line: 2026-01-31T12:00:00Z, a day in UTC, or an age such
// as 90m or 7d. The zero value means not given.
type moment struct {
	at  time.Time
	ago time.Duration // instead of at
}

func (m *moment) UnmarshalText(text []byte) error {
	if days, of := strings.CutSuffix(string(text), "d"); of {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			m.ago = max(time.Duration(n)*24*time.Hour, 1)
			return nil
		}
	}
	if ago, err := time.ParseDuration(string(text)); err == nil && ago >= 0 {
		m.ago = max(ago, 1)
		return nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if at, err := time.Parse(layout, string(text)); err == nil {
			m.at = at
			return nil
		}
	}
	return fmt.Errorf("%q is not a time: use an age such as 90m or 7d, a day such as 2026-01-31, or a time such as 2026-01-31T12:00:00Z", text)
}

// by resolves an age by the clock that stamped the data, which may not be this
// machine's.
func (m moment) by(ctx context.Context, now func(context.Context) (time.Time, error)) (time.Time, error) {
	if m.ago == 0 {
		return m.at, nil
	}
	t, err := now(ctx)
	return t.Add(-m.ago), err
}

// newBar shows progress on a terminal, and nothing elsewhere.
func newBar(total int64, doing string) *progressbar.ProgressBar {
	return progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetVisibility(run.IsTerminal(os.Stderr)),
		progressbar.OptionSetDescription(doing),
		progressbar.OptionSetWidth(30),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionClearOnFinish(),
	)
}

func shownBy(bar *progressbar.ProgressBar) func(done, total uint64) {
	return func(done, total uint64) {
		bar.ChangeMax64(int64(total))
		_ = bar.Set64(int64(done)) // a closed terminal is no reason to fail
	}
}
