// Package export writes the process instances of a time as event logs for
// process mining: XES, OCEL 2.0, Parquet, CSV and NDJSON.
//
// Instances are read in the order in which they were started and written as
// they come, so that memory does not grow with the log. An export that is
// interrupted leaves a file that is whole as far as it goes, and says from
// where to go on.
//
//	export.go       an export from its beginning to its end
//	output.go       the file it goes to
//	events.go       an instance as a list of events, in order
//	xes.go          that list as XES
//	rows.go         that list as Parquet, CSV and NDJSON
//	objects.go      an instance as objects and the events that they share
//	ocel_json.go    these as OCEL 2.0 in JSON
//	ocel_sqlite.go  these as OCEL 2.0 in SQLite
package export

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sluice/pkg/warehouse"
)

// Formats are what --format takes.
var Formats = []string{"xes", "ocel", "parquet", "csv", "ndjson"}

// Config says what to export, and where to.
type Config struct {
	Selection warehouse.Selection
	Format    string                   // one of Formats
	File      string                   // where to; "-" is Stdout; .gz at its end compresses; of OCEL, .sqlite or .db makes a database
	Stdout    io.Writer                // for "-"
	Progress  func(done, total uint64) // called now and then, with instances; default none
}

// Result is what was exported.
type Result struct {
	Instances uint64
	Events    uint64
	Next      time.Time // no instance that was started before is missing; zero when none is at all
}

// format writes one file.
type format interface {
	// instance writes an instance and all that happened in it.
	instance(c *warehouse.Case) (events uint64, err error)
	// close completes the file. Without it the file is worth nothing.
	close() error
}

// Run exports. When ctx ends, or ClickHouse does, the file holds all that Result
// says, and is complete as far as its format goes.
func Run(ctx context.Context, db *warehouse.DB, cfg Config) (r Result, err error) {
	if cfg.Progress == nil {
		cfg.Progress = func(uint64, uint64) {}
	}
	total, err := db.CountCases(ctx, cfg.Selection)
	if err != nil {
		return r, err
	}
	var definitions []warehouse.Definition
	if cfg.Format == "ocel" {
		if definitions, err = db.Definitions(ctx); err != nil {
			return r, err
		}
	}
	to, f, err := cfg.open(definitions)
	if err != nil {
		return r, err
	}
	defer to.discard()
	var broken error // the file ends anywhere
	err = db.Cases(ctx, cfg.Selection, cfg.Format == "ocel", func(batch []*warehouse.Case) error {
		for _, c := range batch {
			n, err := f.instance(c)
			if err != nil {
				broken = fmt.Errorf("write %s: %w", cfg.File, err)
				return broken
			}
			r.Events += n
		}
		r.Instances += uint64(len(batch))
		r.Next = batch[len(batch)-1].StartedAt.Add(time.Millisecond)
		cfg.Progress(r.Instances, max(total, r.Instances))
		return ctx.Err()
	})
	if err == nil {
		r.Next = time.Time{}
	}
	if broken != nil {
		_ = f.close()
		return Result{}, broken
	}
	// Whole batches are written: whatever has ended the reading, the file can be
	// completed and is right up to there.
	if failed := errors.Join(f.close(), to.keep()); failed != nil {
		return Result{}, errors.Join(err, fmt.Errorf("write %s: %w", cfg.File, failed))
	}
	return r, err
}

// open opens the file and begins to write.
func (cfg Config) open(definitions []warehouse.Definition) (*output, format, error) {
	database := strings.HasSuffix(cfg.File, ".sqlite") || strings.HasSuffix(cfg.File, ".db")
	switch {
	case database && cfg.Format != "ocel":
		return nil, nil, fmt.Errorf("%s would be a database, which is OCEL: --format ocel, or another name", cfg.File)
	case cfg.Format == "parquet" && strings.HasSuffix(cfg.File, ".gz"):
		return nil, nil, fmt.Errorf("%s: Parquet is compressed inside: leave .gz away, or few programs can read it", cfg.File)
	case strings.HasSuffix(cfg.File, ".sqlite.gz") || strings.HasSuffix(cfg.File, ".db.gz"):
		return nil, nil, fmt.Errorf("%s: a database cannot be compressed while it is written: leave .gz away", cfg.File)
	}
	to, err := create(cfg.File, cfg.Stdout)
	if err != nil {
		return nil, nil, err
	}
	f, err := cfg.format(to, database, definitions)
	if err != nil {
		to.discard()
		return nil, nil, fmt.Errorf("write %s: %w", cfg.File, err)
	}
	return to, f, nil
}

func (cfg Config) format(to *output, database bool, definitions []warehouse.Definition) (format, error) {
	switch cfg.Format {
	case "xes":
		return newXES(to)
	case "parquet":
		return newParquet(to), nil
	case "csv":
		return newCSV(to)
	case "ndjson":
		return newNDJSON(to), nil
	case "ocel":
		var log objectLog
		var err error
		if database {
			log, err = newSQLite(to.name())
		} else {
			log, err = newOCEL(to)
		}
		if err != nil {
			return nil, err
		}
		return newObjects(log, definitions), nil
	}
	return nil, fmt.Errorf("there is no format %s: it is one of %s", cfg.Format, strings.Join(Formats, ", "))
}
