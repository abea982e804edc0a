package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protowire"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load"
	"sluice/pkg/programtest"
)

// Rival is another program that stores what it gets over HTTP in ClickHouse.
type Rival struct {
	Name                   string
	CPU, Engine, Rate, Ack Row
	Stored                 Row // of a million acknowledged records
}

// logsTable is the table of the OpenTelemetry exporters for ClickHouse, by which both insert.
const logsTable = `CREATE TABLE otel.otel_logs (Timestamp DateTime64(9) CODEC(Delta(8), ZSTD(1)), TimestampTime DateTime DEFAULT toDateTime(Timestamp), TraceId String CODEC(ZSTD(1)),
	SpanId String CODEC(ZSTD(1)), TraceFlags UInt8, SeverityText LowCardinality(String) CODEC(ZSTD(1)), SeverityNumber UInt8, ServiceName LowCardinality(String) CODEC(ZSTD(1)),
	Body String CODEC(ZSTD(1)), ResourceSchemaUrl LowCardinality(String) CODEC(ZSTD(1)), ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
	ScopeSchemaUrl LowCardinality(String) CODEC(ZSTD(1)), ScopeName String CODEC(ZSTD(1)), ScopeVersion LowCardinality(String) CODEC(ZSTD(1)),
	ScopeAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)), LogAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)), EventName String CODEC(ZSTD(1)))
	ENGINE = MergeTree PARTITION BY toDate(Timestamp) ORDER BY (ServiceName, Timestamp) SETTINGS fsync_after_insert = 1`

// rivals measures Sluice and other programs alternately on one engine: the same records, in
// requests of 500, as log records whose body is the JSON. They parse no record, keep nothing
// before they answer, and feed no aggregates.
func (b *bench) rivals(ctx context.Context, page *Page) error {
	const folder = ".cache/rivals"
	return b.on(ctx, page, "rivals", func(d *deployment.Deployment) error {
		for _, sql := range []string{"CREATE DATABASE otel", logsTable} {
			if err := d.Exec(ctx, sql); err != nil {
				return err
			}
		}
		listen := programtest.Address()
		config := filepath.Join(d.Dir, "collector.yaml")
		err := os.WriteFile(config, []byte(fmt.Sprintf(`receivers: {otlp: {protocols: {http: {endpoint: %q}}}}
processors: {batch: {send_batch_size: 100000, timeout: 500ms}}
exporters: {clickhouse: {endpoint: "clickhouse://%s", database: otel, create_schema: false}}
service: {telemetry: {metrics: {level: none}}, pipelines: {logs: {receivers: [otlp], processors: [batch], exporters: [clickhouse]}}}
`, listen, d.Native)), 0o600)
		if err != nil {
			return err
		}
		all := []struct {
			name string
			args []string
		}{
			{"Sluice", nil},
			{"Rotel", []string{"rotel", "start", "--otlp-http-endpoint", listen, "--otlp-grpc-endpoint", programtest.Address(), "--exporter", "clickhouse",
				"--clickhouse-exporter-endpoint", "http://" + d.HTTP, "--clickhouse-exporter-database", "otel", "--batch-max-size", "100000", "--batch-timeout", "500ms"}},
			{"OpenTelemetry collector", []string{"collector", "--config", config}},
		}
		page.Rivals = make([]Rival, len(all))
		bodies := logBodies(b.plan.rivals)
		for n := range b.plan.runs + 1 {
			for i, one := range all {
				if err := b.settle(ctx, d); err != nil {
					return err
				}
				r := &page.Rivals[i]
				r.Name = one.name
				figures, err := b.rival(ctx, d, bodies, folder, listen, one.args)
				if err != nil {
					return fmt.Errorf("%s: %w", one.name, err)
				}
				if n == 0 {
					continue // the warm-up
				}
				for k, row := range []*Row{&r.CPU, &r.Engine, &r.Rate, &r.Ack, &r.Stored} {
					row.Runs = append(row.Runs, figures[k])
				}
				b.note("%s, run %d of %d: %s CPU-s per million, %s rec/s", one.name, n, b.plan.runs, number(figures[0]), number(figures[2]))
			}
		}
		return nil
	})
}

// rival returns CPU and the engine's CPU per million, rate, ack p99 in ms, and stored records per million.
func (b *bench) rival(ctx context.Context, d *deployment.Deployment, bodies [][]byte, folder, listen string, args []string) (f [5]float64, err error) {
	if args == nil {
		p, err := b.pass(ctx, d, load.Config{Batch: firstBatch, Connections: connections, Records: b.plan.rivals})
		return [5]float64{p.ours(), p.cpu(deployment.Engine), p.StoredPerSec, p.Latency.P99 * 1e3, 1e6}, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(folder, args[0]), args[1:]...)
	said, err := os.Create(filepath.Join(d.Dir, args[0]+".log"))
	if err != nil {
		return f, err
	}
	defer said.Close()
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		return f, fmt.Errorf("%w (make rivals fetches it)", err)
	}
	defer func() { err = errors.Join(err, cmd.Process.Kill()); _ = cmd.Wait() }()
	if err := untilListening(ctx, listen); err != nil {
		return f, err
	}
	count := func() (int64, error) { return d.Number(ctx, "SELECT count() FROM otel.otel_logs") }
	before, err := count()
	if err != nil {
		return f, err
	}
	engine := d.Process(deployment.Engine).PID()
	own, engineBefore, began := usage(cmd.Process.Pid).cpu, usage(engine).cpu, time.Now()
	p99, err := postLogs(ctx, "http://"+listen+"/v1/logs", bodies)
	if err != nil {
		return f, err
	}
	want := int64(len(bodies)) * firstBatch
	stored, moved := int64(0), time.Now()
	for stored < want && time.Since(moved) < 5*time.Second { // neither promises that all arrive
		now, err := count()
		if err != nil {
			return f, err
		}
		if now-before > stored {
			stored, moved = now-before, time.Now()
		}
		deployment.Sleep(ctx, pause)
	}
	millions := float64(want) / 1e6
	return [5]float64{(usage(cmd.Process.Pid).cpu - own).Seconds() / millions, (usage(engine).cpu - engineBefore).Seconds() / millions,
		float64(stored) / moved.Sub(began).Seconds(), p99, float64(stored) / millions}, nil
}

func untilListening(ctx context.Context, address string) error {
	for range 200 {
		res, err := http.Post("http://"+address+"/v1/logs", "application/x-protobuf", nil)
		if err == nil {
			return res.Body.Close()
		}
		deployment.Sleep(ctx, pause)
	}
	return fmt.Errorf("%s does not answer", address)
}

// postLogs posts bodies over the usual number of connections and returns the p99 of answers, in ms.
func postLogs(ctx context.Context, url string, bodies [][]byte) (float64, error) {
	var next atomic.Int64
	took := make([]float64, len(bodies))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
	defer client.CloseIdleConnections()
	g, ctx := errgroup.WithContext(ctx)
	for range connections {
		g.Go(func() error {
			for i := next.Add(1) - 1; i < int64(len(bodies)); i = next.Add(1) - 1 {
				began := time.Now()
				for {
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(bodies[i]))
					if err != nil {
						return err
					}
					req.Header.Set("Content-Type", "application/x-protobuf")
					res, err := client.Do(req)
					if err != nil {
						return err
					}
					_, _ = io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
					if res.StatusCode == http.StatusOK {
						break
					}
					if res.StatusCode != http.StatusTooManyRequests && res.StatusCode != http.StatusServiceUnavailable {
						return errors.New(res.Status)
					}
				}
				took[i] = float64(time.Since(began)) / float64(time.Millisecond)
			}
			return nil
		})
	}
	err := g.Wait()
	slices.Sort(took)
	return took[len(took)*99/100], err
}

// logBodies are records as OTLP requests: ResourceLogs, ScopeLogs, and a LogRecord with time and
// body for each.
func logBodies(records int64) (all [][]byte) {
	start := time.Now()
	g := load.NewGenerator(load.GeneratorConfig{Seed: 1, Start: start, Envelope: load.MixedEnvelopes})
	field := func(b []byte, number protowire.Number, v []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), v)
	}
	for range records / firstBatch {
		var logs []byte
		for range firstBatch {
			one, _ := load.AppendBatch(nil, g, 1)
			record := protowire.AppendFixed64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), uint64(start.UnixNano()))
			record = field(record, 5, field(nil, 1, bytes.Trim(one, "[]\n"))) // body: a string
			logs = field(logs, 2, record)
		}
		all = append(all, field(nil, 1, field(nil, 2, logs)))
	}
	return all
}
