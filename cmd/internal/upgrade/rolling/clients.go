package rolling

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"sluice/cmd/internal/parts"
	"sluice/pkg/load"
)

// patience is how long after a request was sent first its client begins another
// attempt. One that is still refused then fails the roll.
const patience = time.Second

// clients are engines that post records, and a dataset tool that changes fields.
type clients struct {
	stage *parts.Stage
	url   string
	rate  float64
	http  *http.Client

	mu      sync.Mutex
	posted  []load.Report
	refused map[string]int64
	fields  map[string]string // as they were put last
	changes int64
	slowest time.Duration
}

func newClients(s *parts.Stage, url string, rate float64) *clients {
	return &clients{
		stage: s, url: url, rate: rate, http: &http.Client{Timeout: 10 * time.Second},
		refused: map[string]int64{}, fields: map[string]string{},
	}
}

// post posts records of one engine, a second of them at a time, until the roll is
// over.
func (c *clients) post(ctx context.Context, over <-chan struct{}) error {
	for seed := uint64(1); !isClosed(over); seed++ {
		report, err := load.Run(ctx, load.Config{
			URL: c.url, Token: c.stage.Token, Seed: seed, Records: int64(c.rate), Rate: c.rate, Batch: 20, Connections: 4,
			GiveUp: patience, Failures: 1,
		})
		c.mu.Lock()
		c.posted = append(c.posted, report)
		for reason, n := range report.Failed {
			c.refused[reason] += n
		}
		c.slowest = max(c.slowest, time.Duration(report.Latency.Max*float64(time.Second)))
		c.mu.Unlock()
		if err != nil {
			return fmt.Errorf("post records: failed attempts %v: %w", report.Failed, err)
		}
	}
	return nil
}

// change puts one field after the other until the roll is over.
func (c *clients) change(ctx context.Context, over <-chan struct{}) error {
	defer c.http.CloseIdleConnections()
	for n := 0; !isClosed(over); n++ {
		field, body := fmt.Sprintf("field-%d", n%20), fmt.Sprintf(`{"name":"put %d"}`, n)
		began := time.Now()
		for try := 1; ; try++ {
			_, err := c.send(ctx, http.MethodPut, field, body)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			c.mu.Lock()
			c.refused["change of a field"]++
			c.mu.Unlock()
			if !sleep(ctx, time.Duration(try)*25*time.Millisecond) || time.Since(began) > patience {
				return fmt.Errorf("put %s: refused for %v, %d times: %w", field, time.Since(began).Round(time.Millisecond), try, err)
			}
		}
		c.mu.Lock()
		c.changes++
		c.fields[field] = body
		c.slowest = max(c.slowest, time.Since(began))
		c.mu.Unlock()
		if !sleep(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}

// send makes one attempt at a request about a field.
func (c *clients) send(ctx context.Context, method, field, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+"/ds/dataset/field/custom/rolled/"+field, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+c.stage.Token)
	req.Header.Set("Content-Type", "application/json")
	res, err := c.http.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, answer)
	}
	return string(answer), err
}

// report adds what was seen.
func (c *clients) report(r *Report) {
	for _, posted := range c.posted {
		r.Records += posted.Acked.Records
	}
	r.Fields, r.Refused, r.Slowest = c.changes, c.refused, c.slowest
}

// compare waits until all is stored, and holds it against what was acknowledged.
func (c *clients) compare(ctx context.Context) error {
	var sum int64
	for _, posted := range c.posted {
		if err := load.StoredIn(c.stage.HTTP)(ctx, posted.Acked); err != nil {
			return err
		}
		sum += posted.Acked.Records
	}
	for _, question := range []string{
		"SELECT count() FROM flow.records",
		"SELECT sum(records) FROM flow.counts_1m", // a view hears of a block a moment after the table has it
	} {
		if err := c.answers(ctx, question, fmt.Sprint(sum)); err != nil {
			return err
		}
	}
	return c.compareFields(ctx)
}

// answers waits until a question has the answer that it must have.
func (c *clients) answers(ctx context.Context, question, want string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		got, err := c.stage.Query(ctx, question)
		if err == nil && got == want {
			return nil
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return fmt.Errorf("%s gives %s (%v), want %s", question, got, err, want)
		}
	}
}

// compareFields waits until every field is as it was put last.
func (c *clients) compareFields(ctx context.Context) error {
	if len(c.fields) == 0 {
		return errors.New("no field was put")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for field, want := range c.fields {
		for {
			got, err := c.send(ctx, http.MethodGet, field, "")
			if err == nil && strings.Contains(got, want[1:len(want)-1]) {
				break
			}
			if !sleep(ctx, 50*time.Millisecond) {
				return fmt.Errorf("field %s is %s (%v), want %s in it", field, got, err, want)
			}
		}
	}
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// sleep tells whether d passed before ctx was done.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
