package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/cmd/internal/parts"
	"sluice/pkg/load"
	"sluice/pkg/warehouse"
)

// bench is a measurement under way.
type bench struct {
	*parts.Stage
	records int64
	log     io.Writer
}

// measure fills a lane, lets an ingester drain it, and looks at what is there
// then and when everything is merged.
func (b *bench) measure(ctx context.Context) (*figures, error) {
	f := &figures{Records: b.records, Taken: time.Now().UTC(), Load: loadAverage()}
	for _, step := range []struct {
		doing string
		do    func(context.Context, *figures) error
	}{
		{"fill the lane", b.fill},
		{"drain it", b.drain},
		{"wait for merges", b.settle},
		{"merge the rest", b.merge},
	} {
		fmt.Fprintf(b.log, "%s %s\n", time.Now().UTC().Format(time.TimeOnly), step.doing) // a terminal that is gone is no reason to fail
		if err := step.do(ctx, f); err != nil {
			return nil, fmt.Errorf("%s: %w", step.doing, err)
		}
	}
	if err := b.ask(ctx, f); err != nil {
		return nil, err
	}
	version, err := b.Query(ctx, "SELECT version()")
	f.Engine = version
	return f, err
}

// fill posts all records while there is no ingester.
func (b *bench) fill(ctx context.Context, f *figures) error {
	if err := b.StopLast(); err != nil {
		return err
	}
	report, err := load.Run(ctx, load.Config{URL: b.URL, Token: b.Token, Records: b.records, Seed: 1, After: time.Now().UnixMicro(), Progress: b.log})
	f.Acknowledged = report.Acked.Records
	return err
}

// drain starts an ingester. Its clock runs from when the first rows can be
// queried until all can, so that no start of a process is in it.
func (b *bench) drain(ctx context.Context, f *figures) error {
	engine := b.Part(parts.Engine).PID()
	used, err := load.CPUTime(engine)
	if err != nil {
		return err
	}
	if err := b.AddIngester(ctx); err != nil {
		return err
	}
	ingester := b.Ingesters()[0].PID()
	var began time.Time
	var first, rows int64
	for moved := time.Now(); rows < f.Acknowledged; {
		last := rows
		if rows, err = b.Number(ctx, "SELECT count() FROM flow.records"); err != nil {
			return err
		}
		now := time.Now()
		if rows != last {
			moved = now
		}
		if rows > 0 && began.IsZero() {
			began, first = now, rows
		}
		if now.Sub(moved) > time.Minute {
			return fmt.Errorf("%d of %d records are stored, and no more for a minute", rows, f.Acknowledged)
		}
		time.Sleep(b.pause(rows-first, f.Acknowledged-rows, now.Sub(began)))
	}
	if rows > f.Acknowledged {
		return fmt.Errorf("%d rows are stored of %d records", rows, f.Acknowledged)
	}
	if rows > first {
		f.Rate = float64(rows-first) / time.Since(began).Seconds()
	}
	stored, err := load.CPUTime(engine)
	if err != nil {
		return err
	}
	f.used, f.EngineStored = used, f.perMillion(stored-used)
	ours, err := load.CPUTime(ingester)
	if err != nil {
		return err
	}
	f.Ingester = f.perMillion(ours)
	f.Loaded, err = b.tables(ctx)
	return err
}

// pause is the time until the next question how many rows there are. Each costs
// the engine some 5 ms of CPU, so they are rare until the end is near.
func (*bench) pause(done, left int64, took time.Duration) time.Duration {
	const least, most = 50 * time.Millisecond, 2 * time.Second
	if done <= 0 {
		return least
	}
	return max(least, min(most, time.Duration(float64(took)*float64(left)/float64(done)/2)))
}

// settle is when no merge is left to do.
func (b *bench) settle(ctx context.Context, f *figures) error {
	if err := b.Settle(ctx); err != nil {
		return err
	}
	now, err := load.CPUTime(b.Part(parts.Engine).PID())
	if err != nil {
		return err
	}
	f.EngineSettled = f.perMillion(now - f.used)
	f.Settled, err = b.tables(ctx)
	return err
}

// merge makes one part of every month of every table.
func (b *bench) merge(ctx context.Context, f *figures) error {
	for _, table := range f.Settled {
		if err := b.Exec(ctx, "OPTIMIZE TABLE flow."+table.Name+" FINAL"); err != nil {
			return err
		}
	}
	now, err := load.CPUTime(b.Part(parts.Engine).PID())
	if err != nil {
		return err
	}
	f.EngineMerged = f.perMillion(now - f.used)
	if f.Merged, err = b.tables(ctx); err != nil {
		return err
	}
	f.Columns, err = b.sizes(ctx, `SELECT concat(table, '.', name), data_compressed_bytes FROM system.columns
		WHERE database = 'flow' AND data_compressed_bytes > 0 ORDER BY table != 'records', table, data_compressed_bytes DESC`)
	if err != nil {
		return err
	}
	indexes, err := b.sizes(ctx, "SELECT concat(table, '.', name), data_compressed_bytes FROM system.data_skipping_indices WHERE database = 'flow' AND data_compressed_bytes > 0")
	f.Columns = append(f.Columns, indexes...)
	return err
}

// tables are the sizes of what records end up in, records first.
func (b *bench) tables(ctx context.Context) ([]size, error) {
	return b.sizes(ctx, `SELECT table, sum(bytes_on_disk) AS bytes FROM system.parts
		WHERE database = 'flow' AND active AND table NOT IN ('migrations', 'changes') GROUP BY table ORDER BY bytes DESC`)
}

// sizes are names and bytes, by record.
func (b *bench) sizes(ctx context.Context, sql string) (all []size, err error) {
	text, err := b.Query(ctx, sql)
	if err != nil || text == "" {
		return nil, err
	}
	for line := range strings.SplitSeq(text, "\n") {
		name, bytes, _ := strings.Cut(line, "\t")
		n, err := strconv.ParseFloat(bytes, 64)
		if err != nil {
			return nil, err
		}
		all = append(all, size{name, n / float64(b.records)})
	}
	return all, nil
}

// ask times every question of analysts, about the process with most instances
// and one instance of it.
func (b *bench) ask(ctx context.Context, f *figures) error {
	questions, err := warehouse.Questions()
	if err != nil {
		return err
	}
	values := map[string]string{"tenant": "", "from": "2000-01-01 00:00:00", "to": "2100-01-01 00:00:00", "now": time.Now().UTC().Format(time.DateTime)}
	for name, sql := range map[string]string{
		"process":  "SELECT topK(1)(bpmn_process_id)[1] FROM flow.instances",
		"source":   "SELECT source FROM flow.instances LIMIT 1",
		"instance": "SELECT process_instance_key FROM flow.instances LIMIT 1",
	} {
		if values[name], err = b.Query(ctx, sql); err != nil {
			return err
		}
	}
	for _, q := range questions {
		took, err := b.time(ctx, q.With(values))
		if err != nil {
			return fmt.Errorf("question %s: %w", q.Name, err)
		}
		f.Queries = append(f.Queries, queryTime{q.Name, took})
	}
	return nil
}

// time is the median of three runs after one that fills the caches, in ms.
func (b *bench) time(ctx context.Context, sql string) (float64, error) {
	var took []float64
	for range 4 {
		began := time.Now()
		if _, err := b.Query(ctx, sql); err != nil {
			return 0, err
		}
		took = append(took, float64(time.Since(began))/float64(time.Millisecond))
	}
	slices.Sort(took[1:])
	return took[2], nil
}

// loadAverage says how busy the machine was before.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], ", ")
}
