package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load"
)

// outage measures how a backlog is drained: records are posted while no ingester runs.
func (b *bench) outage(ctx context.Context, d *deployment.Deployment) (rows, error) {
	records := b.plan.backlog
	r := rows{
		{What: fmt.Sprintf("drain of %s records after an outage of the ingester", number(float64(records))), Unit: "rec/s", Goal: atLeast(270_000, 0)},
		{What: "– ingester, CPU per million", Unit: "s"},
		{What: "– ClickHouse engine, CPU per million, with the merges that follow", Unit: "s", Goal: atMost(5.8, 0)},
		{What: "– resident memory, ingester, peak", Unit: "MiB", Goal: atMost(320, 0)},
		{What: "– records per insert"},
	}
	ingester, engine := d.Process(deployment.Ingester), d.Process(deployment.Engine)
	for n := range b.plan.outages {
		if err := b.settle(ctx, d); err != nil {
			return r, err
		}
		before, err := stored(ctx, d)
		if err != nil {
			return r, err
		}
		if err := ingester.Stop(); err != nil {
			return r, err
		}
		b.seed++
		start := time.Now()
		if _, err := load.Run(ctx, load.Config{URL: d.URL, Token: d.Token, Seed: b.seed, Start: start, After: start.UnixMicro(), Batch: 1000, Connections: connections, Records: records}); err != nil {
			return r, err
		}
		used, err := load.CPUTime(engine.PID())
		if err != nil {
			return r, err
		}
		began := time.Now()
		if err := ingester.Start(); err != nil {
			return r, err
		}
		if err := untilStored(ctx, d, before+records); err != nil {
			return r, err
		}
		took, own := time.Since(began), usage(ingester.PID())
		metrics, err := ingester.Metrics(ctx)
		if err == nil {
			err = b.settle(ctx, d)
		}
		if err != nil {
			return r, err
		}
		after, err := load.CPUTime(engine.PID())
		if err != nil {
			return r, err
		}
		blocks := 0.0
		for name, value := range metrics {
			if strings.HasPrefix(name, "sluice_ingest_blocks_total{") {
				blocks += value
			}
		}
		millions := float64(records) / 1e6
		r.add(float64(records)/took.Seconds(), own.cpu.Seconds()/millions, (after-used).Seconds()/millions, own.peak, float64(records)/max(1, blocks))
		b.note("outage, run %d of %d: %s rec/s", n+1, b.plan.outages, number(float64(records)/took.Seconds()))
	}
	return r, nil
}

// used is the CPU time of a process since its start, and its peak memory in MiB.
type used struct {
	cpu  time.Duration
	peak float64
}

func usage(pid int) (u used) {
	u.cpu, _ = load.CPUTime(pid) // 0 in the page is visible
	kib, _, _ := strings.Cut(after(fmt.Sprintf("/proc/%d/status", pid), "VmHWM"), " ")
	n, _ := strconv.ParseFloat(kib, 64)
	u.peak = n / 1024
	return u
}

// trickleRate is a load of few records, in records per second.
const trickleRate = 20

// trickle measures `sluice up` without load, and with few records.
func (b *bench) trickle(ctx context.Context, _ *deployment.Deployment) (rows, error) {
	r := rows{
		{What: fmt.Sprintf("all processes of sluice up at %d records/s, of one core", trickleRate), Unit: "%", Goal: atMost(12, 0)},
		{What: "– idle", Unit: "%", Goal: atMost(1.5, 0)},
		{What: "– freshness p99 at that rate", Unit: "s", Goal: atMost(1, 0)},
		{What: "– inserts per second", Unit: "1/s"},
	}
	d, err := deployment.New(deployment.Config{Bin: filepath.Join(b.dir, "bin"), Dir: filepath.Join(b.dir, "trickle"), Up: true})
	if err == nil {
		err = d.Start(ctx)
	}
	for n := 0; err == nil && n < b.plan.trickles; n++ {
		err = b.trickles(ctx, d, r)
	}
	return r, errors.Join(err, d.Stop())
}

func (b *bench) trickles(ctx context.Context, d *deployment.Deployment, r rows) error {
	up := d.Process(deployment.Up)
	cfg := load.Config{URL: d.URL, Token: d.Token, Batch: 1, Connections: 1, Rate: trickleRate}
	post := func(for_ time.Duration) error {
		b.seed++
		cfg.Seed, cfg.Start, cfg.Records = b.seed, time.Now(), int64(trickleRate*for_.Seconds())
		cfg.After = cfg.Start.UnixMicro()
		_, err := load.Run(ctx, cfg)
		return err
	}
	if err := post(b.plan.quiet / 4); err != nil { // warm-up
		return err
	}
	deployment.Sleep(ctx, b.plan.quiet/4)
	before, began := family(up.PID()), time.Now()
	deployment.Sleep(ctx, b.plan.quiet)
	idle := share(before, family(up.PID()), time.Since(began))

	counted, err := up.Metrics(ctx)
	if err != nil {
		return err
	}
	before, began = family(up.PID()), time.Now()
	if err := post(b.plan.quiet); err != nil {
		return err
	}
	took := time.Since(began)
	busy := share(before, family(up.PID()), took)
	for sent := time.Now(); time.Since(sent) < time.Minute; {
		now, err := up.Metrics(ctx)
		if err != nil {
			return err
		}
		for key := range now {
			now[key] -= counted[key]
		}
		const fresh, blocks = "sluice_ingest_freshness_seconds", `sluice_ingest_blocks_total{lane="0"}`
		if now[fresh+"_count"] >= float64(cfg.Records) { // the last records too
			r.add(busy, idle, bucketQuantile(now, fresh, 0.99), now[blocks]/took.Seconds())
			return nil
		}
		if !deployment.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("%w: not all of %d records were stored within a minute", load.ErrNotStored, cfg.Records)
}

// bucketQuantile is a quantile of a histogram without labels, interpolated as Prometheus does.
func bucketQuantile(metrics map[string]float64, name string, q float64) float64 {
	buckets := map[float64]float64{}
	for key, count := range metrics {
		if bound, is := strings.CutPrefix(key, name+`_bucket{le="`); is {
			le, _ := strconv.ParseFloat(strings.TrimSuffix(bound, `"}`), 64)
			buckets[le] = count
		}
	}
	rank, lower, below := q*metrics[name+"_count"], 0.0, 0.0
	for _, le := range slices.Sorted(maps.Keys(buckets)) {
		if count := buckets[le]; count >= rank {
			return lower + (le-lower)*(rank-below)/(count-below)
		}
		lower, below = le, buckets[le]
	}
	return lower
}

// share is the CPU time of processes between two times, in percent of one core.
func share(before, after map[int]time.Duration, took time.Duration) float64 {
	sum := time.Duration(0)
	for pid, cpu := range after {
		sum += cpu - before[pid]
	}
	return 100 * sum.Seconds() / took.Seconds()
}

// family is the CPU time of a process and all its descendants.
func family(pid int) map[int]time.Duration {
	all := map[int]time.Duration{}
	for next := []int{pid}; len(next) > 0; {
		cpu, err := load.CPUTime(next[0])
		if err == nil { // else it has ended
			all[next[0]] = cpu
		}
		tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", next[0]))
		next = next[1:]
		for _, task := range tasks {
			for _, child := range strings.Fields(content(fmt.Sprintf("/proc/%s/task/%s/children", task.Name(), task.Name()))) {
				if n, err := strconv.Atoi(child); err == nil && !slices.Contains(slices.Collect(maps.Keys(all)), n) {
					next = append(next, n)
				}
			}
		}
	}
	return all
}
