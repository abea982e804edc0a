package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load"
	"sluice/pkg/warehouse"
)

// asked is the cost of analyst questions. docs/analytics.md shows its JSON.
type asked struct {
	Taken  time.Time
	Engine string // version
	Cores  int
	Steps  []*step
}

// step is the measurement at one number of records.
type step struct {
	Records int64
	Took    float64 // seconds to post and store the new records, until merges ended
	Bytes   int64   // of all tables
	Answers []answer
}

// answer is the cost of a question about all time, and about the last day if it has a
// time range.
type answer struct {
	Name     string
	All, Day cost
}

// cost has times in ms, ClickHouse's CPU time for a hot answer, and the rows and bytes
// read.
type cost struct {
	Cold, Hot, CPU float64
	Rows, Bytes    int64
}

// history measures on a month of a simulated engine: the questions of docs/analytics.md at a
// tenth of the records and at all, and the console at all.
func (b *bench) history(ctx context.Context, page *Page) error {
	questions, steps := slices.Contains(b.cfg.Parts, "questions"), b.plan.steps
	if !questions {
		steps = steps[len(steps)-1:]
	}
	return b.on(ctx, page, "history", func(d *deployment.Deployment) error {
		page.Asked = &asked{Taken: b.began.UTC(), Engine: page.Versions.Engine, Cores: page.Machine.Cores}
		engine := load.History(1, b.plan.many, span, time.Now())
		done := int64(0)
		for _, records := range steps {
			b.note("store %d records", records)
			began := time.Now()
			if err := b.store(ctx, d, engine, records-done, records); err != nil {
				return err
			}
			done = records
			one := &step{Records: records, Took: time.Since(began).Seconds()}
			page.Asked.Steps = append(page.Asked.Steps, one)
			if !questions {
				continue
			}
			if err := b.ask(ctx, d, one); err != nil {
				return err
			}
		}
		if !slices.Contains(b.cfg.Parts, "console") {
			return nil
		}
		// The questions outlive a failure of the console.
		if err := page.writeHistory(b.cfg.Out); err != nil {
			return err
		}
		return b.console(ctx, d, page)
	})
}

const span = 30 * 24 * time.Hour

// store posts records of a source up to this number, and waits until they are queryable
// and merges have ended.
func (b *bench) store(ctx context.Context, d *deployment.Deployment, from load.Source, records, all int64) error {
	_, err := load.Run(ctx, load.Config{
		URL: d.URL, Token: d.Token, Records: records, Batch: 1000, Seed: uint64(all), Timeout: time.Minute, GiveUp: 5 * time.Minute, Source: from,
		Stored: func(ctx context.Context, _ load.Totals) error { return d.WaitRows(ctx, all) },
	})
	if err != nil {
		return err
	}
	return d.WaitMerged(ctx)
}

func (b *bench) ask(ctx context.Context, d *deployment.Deployment, one *step) error {
	questions, err := warehouse.Questions()
	if err != nil {
		return err
	}
	values := map[string]string{"tenant": "", "source": "load"}
	for name, sql := range map[string]string{
		"from":     "SELECT toStartOfSecond(min(ts)) FROM flow.records",
		"to":       "SELECT toStartOfSecond(max(ts)) + 1 FROM flow.records",
		"instance": "SELECT parent_process_instance_key FROM flow.v_process_instances WHERE source = 'load' AND parent_process_instance_key != '' AND state = 'COMPLETED' ORDER BY cityHash64(process_instance_key) LIMIT 1",
	} {
		if values[name], err = d.Query(ctx, sql); err != nil {
			return err
		}
	}
	values["now"] = values["to"]
	end, err := time.Parse("2006-01-02 15:04:05.000", values["to"])
	if err != nil {
		return err
	}
	lastDay := maps.Clone(values)
	lastDay["from"] = end.Add(-24 * time.Hour).Format(time.DateTime)
	if one.Bytes, err = d.Number(ctx, "SELECT sum(bytes_on_disk) FROM system.parts WHERE database = 'flow' AND active"); err != nil {
		return err
	}
	for _, q := range questions {
		a := answer{Name: q.Name}
		if a.All, err = b.times(ctx, d, q.With(values)); err != nil {
			return fmt.Errorf("question %s: %w", q.Name, err)
		}
		if slices.ContainsFunc(q.Parameters, func(p warehouse.Parameter) bool { return p.Name == "from" }) {
			if a.Day, err = b.times(ctx, d, q.With(lastDay)); err != nil {
				return fmt.Errorf("question %s of a day: %w", q.Name, err)
			}
		}
		one.Answers = append(one.Answers, a)
		b.note("%s: hot %s ms, of a day %s ms", a.Name, number(a.All.Hot), number(a.Day.Hot))
	}
	return nil
}

// times measures a cold answer, and then the minimum of up to five hot ones, since other
// work on the machine only adds time. Slow questions are repeated less.
func (b *bench) times(ctx context.Context, d *deployment.Deployment, sql string) (c cost, err error) {
	if err := forget(ctx, d); err != nil {
		return c, err
	}
	if c.Cold, err = c.ask(ctx, d, sql); err != nil {
		return c, err
	}
	runs := b.plan.asks
	if c.Cold > 2000 {
		runs = min(runs, 2)
	}
	engine := d.Process(deployment.Engine).PID()
	before, err := load.CPUTime(engine)
	if err != nil {
		return c, err
	}
	for range runs {
		ms, err := c.ask(ctx, d, sql)
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

func (c *cost) ask(ctx context.Context, d *deployment.Deployment, sql string) (ms float64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+d.HTTP+"/?wait_end_of_query=1&max_threads=2", strings.NewReader(sql))
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

// forget empties the caches of ClickHouse and the page cache of its files.
func forget(ctx context.Context, d *deployment.Deployment) error {
	for _, cache := range []string{"MARK", "UNCOMPRESSED", "PRIMARY INDEX", "QUERY CONDITION"} {
		if err := d.Exec(ctx, "SYSTEM DROP "+cache+" CACHE"); err != nil {
			return err
		}
	}
	return filepath.WalkDir(d.Process(deployment.Engine).Data, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			dropCached(path)
		}
		return nil // a part was deleted meanwhile
	})
}

func (p Page) writeHistory(dir string) error {
	dir = filepath.Join(dir, "performance")
	err := os.MkdirAll(dir, 0o755)
	if len(p.Viewed) > 0 {
		err = errors.Join(err, p.write("console.md", dir))
	}
	if err != nil || len(p.Asked.Last().Answers) == 0 {
		return err
	}
	if err := p.write("analytics.md", dir); err != nil {
		return err
	}
	text, err := json.MarshalIndent(p.Asked, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "analytics.json"), append(text, '\n'), 0o644)
}

// Last returns the step of all records.
func (a *asked) Last() *step { return a.Steps[len(a.Steps)-1] }

// Goal returns the maximum of a hot answer, in ms.
func (a answer) Goal() float64 {
	if a.Name == "timeline" {
		return 20
	}
	return 100
}

// Hot formats a time: bold beyond the goal, empty if not measured.
func (a answer) Hot(c cost) string {
	switch {
	case c.Hot == 0:
		return ""
	case c.Hot > a.Goal():
		return "**" + number(c.Hot) + "**"
	}
	return number(c.Hot)
}

// Within counts the questions that meet the goal, about all time and about a day.
func (s *step) Within() string {
	all, day, days := 0, 0, 0
	for _, a := range s.Answers {
		if a.All.Hot <= a.Goal() {
			all++
		}
		if a.Day.Hot > 0 {
			days++
			if a.Day.Hot <= a.Goal() {
				day++
			}
		}
	}
	return fmt.Sprintf("%d of %d about all the time, %d of %d about a day", all, len(s.Answers), day, days)
}

func (s *step) Millions() float64 { return float64(s.Records) / 1e6 }

// BytesEach returns the bytes per record in all tables.
func (s *step) BytesEach() float64 { return float64(s.Bytes) / float64(s.Records) }

func (c cost) Megabytes() float64 { return float64(c.Bytes) / 1e6 }

func (c cost) Thousands() float64 { return float64(c.Rows) / 1e3 }
