package camunda_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/load/camunda"
)

type partition struct {
	mu      sync.Mutex
	records [][]byte
	whole   bool
}

func (p *partition) Len() (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.records), p.whole
}

func (p *partition) Read(from, to int) ([][]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.records[from:to], nil
}

// write appends n records, each with a member of this many bytes.
func (p *partition) write(n, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range n {
		p.records = append(p.records, fmt.Appendf(nil, `{"partitionId":1,"position":%d,"timestamp":1763700000000,"valueType":"PROCESS_INSTANCE","sequence":2251799813685248,"value":{"x":"%s"}}`,
			len(p.records), strings.Repeat("x", bytes)))
	}
}

func (p *partition) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.whole = true
}

// taker is an Elasticsearch that records the bulks.
type taker struct {
	mu        sync.Mutex
	fault     func(attempt int) error // of a bulk
	began     time.Time
	attempts  []string // "seconds first..last", of each bulk received
	times     map[int]int
	templates int
}

func newTaker() *taker { return &taker{began: time.Now(), times: map[int]int{}} }

func (k *taker) Templates(context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.templates++
	return nil
}

func (k *taker) Bulk(_ context.Context, body []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	lines := strings.Split(strings.TrimSuffix(string(body), "\n"), "\n")
	var positions []int
	for i := 0; i < len(lines); i += 2 {
		var action struct {
			Index struct {
				Index   string `json:"_index"`
				ID      string `json:"_id"`
				Routing string
			}
		}
		var doc struct{ Position int }
		if err := errors.Join(json.Unmarshal([]byte(lines[i]), &action), json.Unmarshal([]byte(lines[i+1]), &doc)); err != nil {
			panic(err)
		}
		if want := fmt.Sprint("1-", doc.Position); action.Index.ID != want || action.Index.Routing != "1" || !strings.HasPrefix(action.Index.Index, "zeebe-record_process-instance_8.7.") || !strings.HasSuffix(action.Index.Index, "_2025-11-21") {
			panic(lines[i])
		}
		positions = append(positions, doc.Position)
	}
	k.attempts = append(k.attempts, fmt.Sprintf("%.0f %d..%d", time.Since(k.began).Seconds(), positions[0], positions[len(positions)-1]))
	if k.fault != nil {
		if err := k.fault(len(k.attempts)); err != nil {
			return err
		}
	}
	for _, at := range positions {
		k.times[at]++
	}
	return nil
}

// exports runs an exporter until its log is exported.
func exports(t *testing.T, cfg func(*camunda.Config), fault func(int) error, live func(*partition, *camunda.Exporter)) (*taker, camunda.Count) {
	t.Helper()
	log, to := &partition{}, newTaker()
	to.fault = fault
	c := camunda.Config{Partition: 1, Log: log, To: to, Random: rand.New(rand.NewPCG(1, 2))}
	if cfg != nil {
		cfg(&c)
	}
	e := camunda.New(c)
	done := make(chan camunda.Count)
	go func() {
		count, err := e.Run(t.Context())
		expect.NoError(t, err)
		done <- count
	}()
	live(log, e)
	log.end()
	count := <-done
	for i := range log.records {
		expect.Not(t, to.times[i] == 0, "record %d was never taken", i)
	}
	return to, count
}

func TestABulkIsCutByRecordsBytesAndTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, count := exports(t, nil, nil, func(p *partition, _ *camunda.Exporter) {
			p.write(2500, 10)
			time.Sleep(7 * time.Second)
			p.write(25, 1<<20)
			time.Sleep(20 * time.Second)
			p.write(1, 10)
		})
		want := []string{"0 0..999", "0 1000..1999", "5 2000..2499", "7 2500..2509", "7 2510..2519", "10 2520..2524", "30 2525..2525"}
		expect.Equal(t, "bulks", want, to.attempts)
		if want := (camunda.Count{Records: 2526, Bulks: 7}); count != want || to.templates != 1 {
			t.Errorf("did %+v and made templates %d times, want %+v and once", count, to.templates, want)
		}
	})
}

// TestABulkIsRepeatedWhole: a full bulk is retried after 2, 4, 8, 10 s and at every tick
// of the timer; another grows.
func TestABulkIsRepeatedWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := func(attempt int) error {
			if attempt <= 6 || attempt > 7 && attempt <= 9 {
				return errors.New("no")
			}
			return nil
		}
		to, count := exports(t, nil, refused, func(p *partition, _ *camunda.Exporter) {
			p.write(1500, 10)
			time.Sleep(26 * time.Second)
			p.write(100, 10)
		})
		want := []string{"0 0..999", "2 0..999", "5 0..999", "6 0..999", "10 0..999", "14 0..999", "15 0..999", "20 1000..1499", "25 1000..1499", "30 1000..1599"}
		expect.Equal(t, "bulks", want, to.attempts)
		expect.Not(t, count.Records != 1600 || count.Again != 0 || count.Retries != 8, "did %+v, want 1600 records once and 8 retries", count)
	})
}

// TestTheResumePositionOfABroker: a follower has the acknowledged position of 15 s ago, a
// restarted broker that of its last snapshot.
func TestTheResumePositionOfABroker(t *testing.T) {
	for name, tt := range map[string]struct {
		failure camunda.Failure
		after   time.Duration
		again   int64 // records
	}{
		"another leader":               {camunda.Failure{Kind: camunda.LeaderChanged}, 709 * time.Second, 8},
		"killed":                       {camunda.Failure{Kind: camunda.Restarted}, 709 * time.Second, 105},
		"killed, its snapshot failed":  {camunda.Failure{Kind: camunda.RestartedOlder}, 709 * time.Second, 405},
		"killed before any snapshot":   {camunda.Failure{Kind: camunda.Restarted}, 200 * time.Second, 195},
		"restored, and nothing is old": {camunda.Failure{Kind: camunda.Restored, From: 700}, 709 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, count := exports(t, func(c *camunda.Config) { c.Followers = 14 * time.Second }, nil, func(p *partition, e *camunda.Exporter) {
					for range int(tt.after / time.Second) {
						p.write(1, 10)
						time.Sleep(time.Second)
					}
					e.Fail(tt.failure)
					time.Sleep(time.Minute)
				})
				if d := count.Again - tt.again; d < -6 || d > 6 || count.Failures != 1 {
					t.Errorf("did %+v, want about %d records again", count, tt.again)
				}
			})
		})
	}
}

// TestALeaderThatHasNotNoticedPostsItsBulk concurrently with its successor.
func TestALeaderThatHasNotNoticedPostsItsBulk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, count := exports(t, nil, nil, func(p *partition, e *camunda.Exporter) {
			for range 20 {
				p.write(10, 10)
				time.Sleep(7 * time.Second)
				p.write(10, 10)
				time.Sleep(time.Second)
				e.Fail(camunda.Failure{Kind: camunda.Unnoticed})
			}
			time.Sleep(time.Minute)
		})
		expect.Not(t, count.Late == 0 || count.Late > 20 || count.Failures != 20, "did %+v, want some late bulks", count)
	})
}

// TestTheClientGoesToTheNextServer only when one is unavailable.
func TestTheClientGoesToTheNextServer(t *testing.T) {
	status := http.StatusServiceUnavailable
	var paths []string
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	defer first.Close()
	second := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		user, password, _ := r.BasicAuth()
		paths = append(paths, fmt.Sprint(r.Method, " ", r.URL.EscapedPath(), " ", user, " ", password, " ", r.ContentLength, " ", len(body)))
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
		if r.Method == http.MethodPut {
			io.WriteString(w, `{"acknowledged":true}`)
			return
		}
		io.WriteString(w, `{"took":1,"errors":false,"items":[{"index":{"_index":"i","status":201}}]}`)
	}))
	defer second.Close()
	c := camunda.Client{URLs: []string{first.URL, second.URL}, User: "production", Token: "secret"}
	body := []byte(`{"index":{"_id":"1-7"}}` + "\n" + `{"position":7,"valueType":"JOB","timestamp":1763700000000,"value":{}}` + "\n")
	expect.NoError(t, errors.Join(c.Templates(t.Context()), c.Bulk(t.Context(), body)))
	if len(paths) != 4 || !strings.HasSuffix(paths[3], fmt.Sprint(" production secret -1 ", len(body))) {
		t.Errorf("asked the second server %q, want three templates and a chunked bulk", paths)
	}
	status = http.StatusTooManyRequests
	if err := c.Bulk(t.Context(), body); err == nil || len(paths) != 4 {
		t.Errorf("after 429 of the first server: %v, %d requests to the second; want an error and no more", err, len(paths))
	}
	if err := (&camunda.Client{URLs: []string{second.URL}}).Bulk(t.Context(), append(body, body...)); err == nil {
		t.Error("an answer about one of two items is taken for both")
	}
}
