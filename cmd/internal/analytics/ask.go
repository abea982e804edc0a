package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/cmd/internal/parts"
	"sluice/pkg/load"
	"sluice/pkg/warehouse"
)

// ask asks every question, about all the time there is and about the last day
// of it.
func (b *bench) ask(ctx context.Context, s *step) error {
	questions, err := warehouse.Questions()
	if err != nil {
		return err
	}
	values := map[string]string{"tenant": "", "source": "load"}
	for name, sql := range map[string]string{
		"from":     "SELECT toStartOfSecond(min(ts)) FROM flow.records",
		"to":       "SELECT toStartOfSecond(max(ts)) + 1 FROM flow.records",
		"instance": "SELECT toString(assumeNotNull(parent_process_instance_key)) FROM flow.v_process_instances WHERE source = 'load' AND parent_process_instance_key > 0 AND state = 'COMPLETED' ORDER BY cityHash64(process_instance_key) LIMIT 1",
		"version":  "SELECT version()",
	} {
		if values[name], err = b.Query(ctx, sql); err != nil {
			return err
		}
	}
	values["now"] = values["to"]
	b.figures.Engine = values["version"]
	end, err := time.Parse("2006-01-02 15:04:05.000", values["to"])
	if err != nil {
		return err
	}
	lastDay := map[string]string{}
	for name, value := range values {
		lastDay[name] = value
	}
	lastDay["from"] = end.Add(-24 * time.Hour).Format(time.DateTime)
	if s.Bytes, err = b.Number(ctx, "SELECT sum(bytes_on_disk) FROM system.parts WHERE database = 'flow' AND active"); err != nil {
		return err
	}
	for _, q := range questions {
		a := answer{Name: q.Name}
		if a.All, err = b.times(ctx, q.With(values)); err != nil {
			return fmt.Errorf("question %s: %w", q.Name, err)
		}
		if slices.ContainsFunc(q.Parameters, func(p warehouse.Parameter) bool { return p.Name == "from" }) {
			if a.Day, err = b.times(ctx, q.With(lastDay)); err != nil {
				return fmt.Errorf("question %s of a day: %w", q.Name, err)
			}
		}
		s.Answers = append(s.Answers, a)
		b.say("%-22s cold %6.0f hot %6.0f cpu %6.0f ms, %9d rows; a day: hot %6.0f cpu %6.0f ms, %9d rows", a.Name, a.All.Cold, a.All.Hot, a.All.CPU, a.All.Rows, a.Day.Hot, a.Day.CPU, a.Day.Rows)
	}
	return nil
}

// times asks with nothing in any cache, and then five times more, of which hot
// is the least: other work on the machine only ever adds to it. What takes
// seconds is asked less often. Processor time is that of the hot answers.
func (b *bench) times(ctx context.Context, sql string) (c cost, err error) {
	if err := b.forget(ctx); err != nil {
		return c, err
	}
	if c.Cold, err = b.time(ctx, sql, &c); err != nil {
		return c, err
	}
	runs := 5
	if c.Cold > 2000 {
		runs = 2
	}
	engine := b.Part(parts.Engine).PID()
	before, err := load.CPUTime(engine)
	if err != nil {
		return c, err
	}
	for range runs {
		ms, err := b.time(ctx, sql, &c)
		if err != nil {
			return c, err
		}
		if c.Hot == 0 || ms < c.Hot {
			c.Hot = ms
		}
	}
	after, err := load.CPUTime(engine)
	c.CPU = float64(after-before) / float64(runs) / float64(time.Millisecond)
	return c, err
}

// time asks once, over HTTP, and reads the whole answer.
func (b *bench) time(ctx context.Context, sql string, c *cost) (ms float64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+b.HTTP+"/?wait_end_of_query=1&max_threads=2", strings.NewReader(sql))
	if err != nil {
		return 0, err
	}
	began := time.Now()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	ms = float64(time.Since(began)) / float64(time.Millisecond)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.500s", res.Status, text)
	}
	if err != nil {
		return 0, err
	}
	var said struct {
		Rows  string `json:"read_rows"`
		Bytes string `json:"read_bytes"`
	}
	if err := json.Unmarshal([]byte(res.Header.Get("X-ClickHouse-Summary")), &said); err != nil {
		return 0, fmt.Errorf("read the summary of an answer: %w", err)
	}
	if c.Rows, err = strconv.ParseInt(said.Rows, 10, 64); err != nil {
		return 0, err
	}
	c.Bytes, err = strconv.ParseInt(said.Bytes, 10, 64)
	return ms, err
}

// forget empties the caches of ClickHouse, and those of the system of its files.
func (b *bench) forget(ctx context.Context) error {
	for _, cache := range []string{"MARK", "UNCOMPRESSED", "PRIMARY INDEX", "QUERY CONDITION"} {
		if err := b.Exec(ctx, "SYSTEM DROP "+cache+" CACHE"); err != nil {
			return err
		}
	}
	return filepath.WalkDir(filepath.Join(b.dir, "clickhouse"), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			dropCached(path)
		}
		return nil // parts come and go
	})
}
