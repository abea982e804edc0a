package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"sluice/cmd/internal/audit/recount"
	"sluice/cmd/internal/forget"
	"sluice/cmd/internal/run"
	"sluice/pkg/stream"
)

type forgetCmd struct {
	Instance     string        `help:"Key of the process instance to remove, with the instances it called."`
	Variable     string        `help:"Name and value of a variable, such as email=anna@example.org: every instance that ever had it. Without = the value is read from standard input."`
	Source       string        `help:"Source of the instances; all sources when empty."`
	By           string        `help:"Name of the person requesting it, for the receipt."`
	Running      bool          `help:"Also remove active instances; their later records are stored."`
	Receipt      []string      `help:"Files with receipts, comma-separated: repeat their orders where ClickHouse lacks the receipt, as after the restore of an older backup. Needs --yes." type:"existingfile"`
	KeepBackups  time.Duration `help:"Retention of your backups: delete orders older than this, --keep-records and --history, since no copy of their records is left; 0: keep all orders. Needs --yes."`
	Yes          bool          `help:"Remove the instances. Without it nothing is changed, and the receipt counts their rows and dead letters." env:"-"`
	Wait         time.Duration `default:"1m" help:"How long to wait until accepted records are stored, and for blocks that are being stored."`
	RepeatWindow time.Duration `default:"10m" help:"Deduplication window of requests, as configured for the ingesters."`
	History      time.Duration `default:"24h" help:"Retention of stored messages in lanes, as configured for the ingesters: the receipt has the time when the last copies are purged."`
	run.Operator
	run.NATS
	run.ClickHouse
}

func (c *forgetCmd) Run(ctx context.Context, log *slog.Logger) error {
	if c.Instance != "" && c.Variable != "" {
		return errors.New("give --instance or --variable, not both")
	}
	name, value, given := strings.Cut(c.Variable, "=")
	if c.Variable != "" && name == "" {
		return fmt.Errorf("--variable has no name: give name=value, such as email=anna@example.org")
	}
	if c.Variable != "" && !given {
		text, err := io.ReadAll(io.LimitReader(os.Stdin, 1<<20))
		if err != nil {
			return fmt.Errorf("read the value of %s: %w", name, err)
		}
		value = strings.TrimRight(string(text), "\r\n")
	}
	if c.Variable != "" && value == "" {
		return fmt.Errorf("--variable %s has no value: without one it would match every instance", name)
	}
	if !c.Yes && (len(c.Receipt) > 0 || c.KeepBackups > 0) {
		return errors.New("nothing was changed: add --yes to carry out receipts, or to delete orders")
	}
	again, err := readReceipts(c.Receipt)
	if err != nil {
		return err
	}
	db, err := openTables(ctx, c.Operator, c.ClickHouse, log)
	if err != nil {
		return err
	}
	defer db.Close()
	return run.WithStream(ctx, c.Operator, c.NATS, stream.Config{RepeatWindow: c.RepeatWindow}, log, func(s *stream.Stream) error {
		receipts, err := forget.Run(ctx, s, db, forget.Config{
			Instance: c.Instance, Variable: name, Value: value, Source: c.Source, By: c.By,
			Receipts: again, Backups: c.KeepBackups,
			Running: c.Running, Dry: !c.Yes, Wait: c.Wait, History: c.History, Recount: recount.Config{Wait: c.Wait},
		})
		encoder := json.NewEncoder(os.Stdout)
		for _, r := range receipts {
			err = errors.Join(err, encoder.Encode(r))
		}
		if err == nil && !c.Yes && len(receipts) > 0 {
			log.Info("nothing was changed: add --yes to remove these instances")
		}
		return err
	})
}

// readReceipts reads receipts as this command prints them.
func readReceipts(files []string) (all []*forget.Receipt, err error) {
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		for decoder := json.NewDecoder(file); ; {
			r := new(forget.Receipt)
			err := decoder.Decode(r)
			if errors.Is(err, io.EOF) {
				break
			}
			if err == nil && (r.ID == "" || len(r.Subjects) == 0) {
				err = errors.New("no id or no instances")
			}
			if err != nil {
				return nil, fmt.Errorf("--receipt %s: not a receipt of sluice forget: %w", name, err)
			}
			all = append(all, r)
		}
	}
	return all, nil
}
