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

// Findings is how the tables differ from what the oracle computes from the ledgers.
type Findings struct {
	Acked     int64 // records acknowledged
	Stored    int64 // rows
	Lost      int64 // rows that are missing
	Doubled   int64 // rows beyond those of their record
	Strangers int64 // rows of records that were never sent, or that are gone
	Counted   int64 // sum of the counters
	Above     int64 // by so much they are above
	Below     int64 // and below
	Views     int   // of aggregates, compared row by row
	Differ    int   // of them, with a row or a column that is not as it must be

	Named []string // the first of what is wrong, a line each
}

// Clean tells whether exactly what had to be stored is stored.
func (f Findings) Clean() bool {
	return f.Lost+f.Doubled+f.Strangers+f.Above+f.Below == 0 && f.Differ == 0
}

// maxNamed bounds what is named of all tables of one source.
const maxNamed = 20

// tables is what is stored: how it is asked for, as TabSeparated.
type tables struct {
	ask      func(ctx context.Context, sql string) (io.ReadCloser, error)
	database string
}

// judge compares everything that is stored with what the ledgers make of it, one source
// after the other.
func (t *tables) judge(ctx context.Context, ledgers []*ledger) (f Findings, err error) {
	names, err := t.sources(ctx)
	if err != nil {
		return f, err
	}
	of := map[string]*ledger{}
	for _, l := range ledgers {
		of[l.source], names[l.source] = l, true
	}
	views := map[string]bool{} // whether it is as it must be
	for _, source := range slices.Sorted(maps.Keys(names)) {
		o := oracle.New(source) // of an unknown source nothing was sent
		if l := of[source]; l != nil {
			if o, err = l.oracle(); err != nil {
				return f, err
			}
		}
		if err := t.judgeSource(ctx, source, o, &f, views); err != nil {
			return f, fmt.Errorf("compare what is stored of %s: %w", source, err)
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

// judgeSource compares all tables of a source, its rows first.
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

// sources are those that have rows, counters, or a mark.
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

// trace tells where the rows of a doubled record came from.
const trace = `SELECT source, id, 'lane', lane, 'incarnation', incarnation, 'message', stream_seq, 'received', received_at, 'part', _part FROM flow.records
	WHERE (source, id, ts) IN (SELECT source, id, ts FROM flow.records WHERE identity = '' GROUP BY source, partition_id, position, id, key, value_type, intent, ts HAVING count() > 1 LIMIT 20)
	ORDER BY source, id, stream_seq LIMIT 100`
