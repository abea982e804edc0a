package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// What stood at e79fe00, before identity: its tables, and the 16 queries that
// were asked of them.
var (
	//go:embed before/schema.sql
	schemaBefore string
	//go:embed before/queries.sql
	queriesBefore string
)

// turns is how often each query is asked of either, after one that fills the caches.
const turns = 9

// ratio is what a query took of the tables of before and of those of now, in ms.
type ratio struct {
	Name        string
	Before, Now float64
}

// compare fills the tables of before with what is stored, in inserts of about the
// size of blocks, and asks both the same queries by turns: what else the machine
// does falls on both alike, and only ever adds to the least time.
func (b *bench) compare(ctx context.Context) (asMerged, inOne []ratio, err error) {
	b.say("fill the tables of before")
	for statement := range strings.SplitSeq(schemaBefore, ";\n") {
		if statement = strings.TrimSpace(statement); statement != "" {
			if err := b.Exec(ctx, statement); err != nil {
				return nil, nil, err
			}
		}
	}
	const columns = `id, key, record_type, value_type, intent, ts, partition_id, position, tenant_id, bpmn_process_id, process_definition_key, version,
		process_instance_key, element_id, element_instance_key, bpmn_element_type, job_type, worker, retries, deadline, error_type, error_code, error_message,
		variables, custom_headers, extra, received_at, stream_seq, stream_idx, lane`
	last, err := b.Number(ctx, "SELECT max(stream_seq) FROM flow.records")
	if err != nil {
		return nil, nil, err
	}
	step := max(1, last*100_000/b.records)
	for from := int64(0); from <= last; from += step {
		if err := b.Exec(ctx, fmt.Sprintf("INSERT INTO before.records (%s) SELECT %s FROM flow.records WHERE stream_seq >= %d AND stream_seq < %d SETTINGS min_insert_block_size_rows = 200000, max_insert_threads = 1", columns, columns, from, from+step)); err != nil {
			return nil, nil, err
		}
	}
	if err := b.Settle(ctx); err != nil {
		return nil, nil, err
	}
	b.say("ask both by turns")
	if asMerged, err = b.byTurns(ctx); err != nil {
		return nil, nil, err
	}
	b.say("merge the rest")
	for _, database := range []string{"flow", "before"} {
		instances := map[string]string{"flow": "instances", "before": "process_instances"}[database]
		for _, table := range []string{"records", "counts_1m", instances, "element_instances", "jobs", "incidents"} {
			if err := b.Exec(ctx, "OPTIMIZE TABLE "+database+"."+table+" FINAL"); err != nil {
				return nil, nil, err
			}
		}
	}
	b.say("ask both by turns")
	inOne, err = b.byTurns(ctx)
	return asMerged, inOne, err
}

// byTurns asks every query, least of turns.
func (b *bench) byTurns(ctx context.Context) (all []ratio, err error) {
	for text := range strings.SplitSeq(queriesBefore, "-- name: ") {
		name, sql, found := strings.Cut(strings.TrimSpace(text), "\n")
		if !found || !strings.HasPrefix(name, "q") {
			continue
		}
		sql = strings.TrimSuffix(sql, ";")
		r := ratio{Name: name}
		for turn := range turns + 1 {
			for _, side := range []struct {
				sql   string
				least *float64
			}{{strings.ReplaceAll(sql, "flow.", "before."), &r.Before}, {sql, &r.Now}} {
				began := time.Now()
				if _, err := b.Query(ctx, side.sql); err != nil {
					return nil, fmt.Errorf("%s: %w", name, err)
				}
				if took := float64(time.Since(began)) / float64(time.Millisecond); turn == 1 || took < *side.least {
					*side.least = took // the first one, which fills the caches, is forgotten at turn 1
				}
			}
		}
		b.say("%-34s before %7.1f ms, now %7.1f ms, %.2f", r.Name, r.Before, r.Now, r.Now/r.Before)
		all = append(all, r)
	}
	return all, nil
}

// writeRatios shows both, as merges left the tables and in one part.
func writeRatios(w io.Writer, f *figures, asMerged, inOne []ratio) error {
	var b strings.Builder
	fmt.Fprintf(&b, `<!-- Written by %[1]smake bench-ratios%[1]s; do not edit. -->
# The 16 queries of before, and now

The queries of analysts as they stood at e79fe00, before records had an identity and
folds a source: the same SQL over the same %[2]s records, of the tables and views of
then and of now, in one engine by turns; the least of %[3]d answers each, in ms. As
merges leave the tables, and in one part of a month. None may take more than 1.5 times
of what it took. Made by

    make bench-ratios

Measured %[4]s, ClickHouse %[5]s, load of the machine before %[6]s.

| query | before | now | ratio | one part: before | now | ratio |
|---|--:|--:|--:|--:|--:|--:|
`, "`", millions(f.Acknowledged), turns, f.Taken.Format("2006-01-02 15:04 UTC"), f.Engine, f.Load)
	within := [2]int{}
	for i, r := range asMerged {
		fmt.Fprintf(&b, "| %s |", r.Name)
		for j, r := range []ratio{r, inOne[i]} {
			text := fmt.Sprintf("%.2f", r.Now/r.Before)
			if r.Now <= 1.5*r.Before {
				within[j]++
			} else {
				text = "**" + text + "**"
			}
			fmt.Fprintf(&b, " %.1f | %.1f | %s |", r.Before, r.Now, text)
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "\nWithin 1.5: %d of %d as merges leave the tables, %d in one part.\n", within[0], len(asMerged), within[1])
	_, err := io.WriteString(w, b.String())
	return err
}

func millions(n int64) string { return fmt.Sprintf("%g million", float64(n)/1e6) }

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.log, "%s %s\n", time.Now().UTC().Format(time.TimeOnly), fmt.Sprintf(format, args...)) // a terminal that is gone is no reason to fail
}

// loaded fills a lane and drains it.
func (b *bench) loaded(ctx context.Context) (*figures, error) {
	f := &figures{Records: b.records, Taken: time.Now().UTC(), Load: loadAverage()}
	for _, do := range []func(context.Context, *figures) error{b.fill, b.drain} {
		if err := do(ctx, f); err != nil {
			return nil, err
		}
	}
	version, err := b.Query(ctx, "SELECT version()")
	f.Engine = version
	return f, errors.Join(err, b.Settle(ctx))
}
