package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"sluice/cmd/internal/oracle"
)

// Findings are the differences between the tables and the oracle's computation from the
// ledgers.
type Findings struct {
	Acked     int64 // records acknowledged
	Stored    int64 // rows
	Lost      int64 // missing rows
	Doubled   int64 // surplus rows of a record
	Strangers int64 // rows of records that were never sent, or were removed
	Counted   int64 // sum of the counters
	Above     int64 // amount by which counters are too high
	Below     int64 // and too low
	Views     int   // aggregate views, compared row by row
	Differ    int   // views with a wrong row or column

	Named []string // the first differences, a line each
}

// Clean reports whether exactly the expected records are stored.
func (f Findings) Clean() bool {
	return f.Lost+f.Doubled+f.Strangers+f.Above+f.Below == 0 && f.Differ == 0
}

// maxNamed bounds the named differences of all tables of one source.
const maxNamed = 20

// tables queries the stored tables, in TabSeparated.
type tables struct {
	ask      func(ctx context.Context, sql string) (io.ReadCloser, error)
	database string
}

func (t *tables) judge(ctx context.Context, ledgers []*ledger) (f Findings, err error) {
	names, err := t.sources(ctx)
	if err != nil {
		return f, err
	}
	of := map[string]*ledger{}
	for _, l := range ledgers {
		of[l.source], names[l.source] = l, true
	}
	views := map[string]bool{} // whether each equals the oracle's
	for _, source := range slices.Sorted(maps.Keys(names)) {
		o := oracle.New(source) // an unknown source must have no rows
		if l := of[source]; l != nil {
			if o, err = l.oracle(); err != nil {
				return f, err
			}
		}
		if err := t.judgeSource(ctx, source, o, &f, views); err != nil {
			return f, fmt.Errorf("compare the tables of source %s: %w", source, err)
		}
	}
	f.Views = len(views)
	for _, ok := range views {
		if !ok {
			f.Differ++
		}
	}
	return f, nil
}

func (t *tables) judgeSource(ctx context.Context, source string, o *oracle.Oracle, f *Findings, views map[string]bool) error {
	var named []string
	compare := func(query string, with func(io.Reader) (oracle.Report, error)) (oracle.Report, error) {
		rows, err := t.ask(ctx, query)
		if err != nil {
			return oracle.Report{}, err
		}
		defer rows.Close()
		r, err := with(rows)
		for _, d := range r.Differences {
			named = append(named, d.String())
		}
		return r, err
	}
	rows, err := compare(o.Records().Query(t.database, source), o.CompareRecords)
	if err != nil {
		return err
	}
	counters, err := compare(o.CountersQuery(t.database), o.CompareCounters)
	if err != nil {
		return err
	}
	f.Acked += o.Acked()
	f.Stored += rows.Rows
	f.Lost += rows.Missing
	f.Doubled += rows.Doubled
	f.Strangers += rows.Strangers
	f.Counted += counters.Rows
	f.Above += counters.Strangers
	f.Below += counters.Missing
	for _, view := range o.Aggregates() {
		r, err := compare(view.Query(t.database, source), func(rows io.Reader) (oracle.Report, error) { return view.Compare(source, rows) })
		if err != nil {
			return err
		}
		ok, known := views[view.Name]
		views[view.Name] = r.OK() && (ok || !known)
	}
	f.Named = append(f.Named, firstOnes(named)...)
	return nil
}

func firstOnes(lines []string) []string {
	if len(lines) <= maxNamed {
		return lines
	}
	return append(lines[:maxNamed:maxNamed], fmt.Sprintf("and %d more", len(lines)-maxNamed))
}

// sources lists the sources that have rows, counters, marks or instances.
func (t *tables) sources(ctx context.Context) (map[string]bool, error) {
	var from []string
	for _, table := range []string{"records", "counts_1m", "sources", "process_instances"} {
		from = append(from, fmt.Sprintf("SELECT DISTINCT source FROM %s.%s", t.database, table))
	}
	rows, err := t.ask(ctx, "SELECT DISTINCT source FROM ("+strings.Join(from, " UNION ALL ")+") FORMAT TabSeparated")
	if err != nil {
		return nil, err
	}
	all, err := io.ReadAll(rows)
	names := map[string]bool{}
	for line := range strings.Lines(string(all)) {
		names[strings.TrimSuffix(line, "\n")] = true
	}
	return names, errors.Join(err, rows.Close())
}

// trace queries the origins of the rows of duplicated records.
const trace = `SELECT source, id, 'lane', lane, 'incarnation', incarnation, 'message', stream_seq, 'received', received_at, 'part', _part FROM flow.records
	WHERE (source, id, ts) IN (SELECT source, id, ts FROM flow.records WHERE identity = '' GROUP BY source, partition_id, position, id, key, value_type, intent, ts HAVING count() > 1 LIMIT 20)
	ORDER BY source, id, stream_seq LIMIT 100`
