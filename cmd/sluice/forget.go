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
	Instance     string        `help:"Process instance key of what is to be forgotten, with the instances that it called."`
	Variable     string        `help:"Name and value of a variable, such as email=anna@example.org: every instance that ever had it. Without = the value is read from standard input."`
	Source       string        `help:"Only of this engine; of all when empty."`
	By           string        `help:"Name of the person who asked, for the receipt."`
	Running      bool          `help:"Also instances that have not ended; what they send later is stored."`
	Yes          bool          `help:"Do it. Without it nothing is changed, and the receipt says what there is." env:"-"`
	Wait         time.Duration `default:"1m" help:"How long to wait until what is accepted is stored, and for blocks that are being stored."`
	RepeatWindow time.Duration `default:"10m" help:"Deduplication window of requests, as configured for the ingesters."`
	History      time.Duration `default:"24h" help:"How long lanes keep stored messages, as configured for the ingesters: the receipt says when the last copies are deleted."`
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
		return fmt.Errorf("--variable begins with the name of a variable, such as email=anna@example.org")
	}
	if c.Variable != "" && !given {
		text, err := io.ReadAll(io.LimitReader(os.Stdin, 1<<20))
		if err != nil {
			return fmt.Errorf("read the value of %s: %w", name, err)
		}
		value = strings.TrimRight(string(text), "\r\n")
	}
	if c.Variable != "" && value == "" {
		return fmt.Errorf("--variable %s has no value: it would be every instance", name)
	}
	db, err := openTables(ctx, c.Operator, c.ClickHouse, log)
	if err != nil {
		return err
	}
	defer db.Close()
	return run.WithStream(ctx, c.Operator, c.NATS, stream.Config{RepeatWindow: c.RepeatWindow}, log, func(s *stream.Stream) error {
		receipts, err := forget.Run(ctx, s, db, forget.Config{
			Instance: c.Instance, Variable: name, Value: value, Source: c.Source, By: c.By,
			Running: c.Running, Dry: !c.Yes, Wait: c.Wait, History: c.History, Recount: recount.Config{Wait: c.Wait},
		})
		encoder := json.NewEncoder(os.Stdout)
		for _, r := range receipts {
			err = errors.Join(err, encoder.Encode(r))
		}
		if err == nil && !c.Yes && len(receipts) > 0 {
			log.Info("nothing was changed: --yes does it")
		}
		return err
	})
}
