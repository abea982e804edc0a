package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"sluice/cmd/internal/audit/recount"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

type recountCmd struct {
	Days []string      `arg:"" optional:"" help:"Days of the records, UTC, such as 2026-01-31; the days in doubt when omitted."`
	Dry  bool          `help:"Only report differences."`
	Hold time.Duration `default:"1m" help:"Maximum pause of the lanes if this command dies."`
	Wait time.Duration `default:"30s" help:"How long to wait for blocks that are being stored."`
	JSON bool          `name:"json" help:"Print the result as JSON."`
	installation
}

func (c *recountCmd) Run(ctx context.Context, log *slog.Logger) error {
	for _, day := range c.Days {
		if _, err := time.Parse(time.DateOnly, day); err != nil {
			return fmt.Errorf("%q is not a day: use the form 2026-01-31", day)
		}
	}
	return c.with(ctx, 0, log, func(db *warehouse.DB, s *stream.Stream) (err error) {
		days := c.Days
		if len(days) == 0 {
			if days, err = recount.Due(ctx, s); err != nil {
				return err
			}
		}
		result, err := recount.Run(ctx, s, db, days, recount.Config{Hold: c.Hold, Wait: c.Wait, Dry: c.Dry})
		if c.JSON {
			return errors.Join(err, json.NewEncoder(os.Stdout).Encode(result))
		}
		if len(result) == 0 && err == nil {
			fmt.Println("no recount is due")
		}
		for _, d := range result {
			fmt.Println(recounted(d))
		}
		return err
	})
}

func recounted(d recount.Day) string {
	text := d.Day + ": " + compared(d)
	if len(d.Unproved) > 0 {
		text = fmt.Sprintf("%s: records stored on %s have expired and cannot be compared; of the rest, %s", d.Day, strings.Join(d.Unproved, ", "), compared(d))
	}
	return text
}

func compared(d recount.Day) string {
	switch {
	case d.Missing == 0 && d.Surplus == 0 && d.Fixed:
		return "the counters are correct"
	case d.Fixed:
		return fmt.Sprintf("%d records were missing in the counters and %d were surplus; fixed", d.Missing, d.Surplus)
	}
	return fmt.Sprintf("%d records are missing in the counters and %d are surplus", d.Missing, d.Surplus)
}
