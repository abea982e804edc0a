package endtoend

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/pkg/programtest"
)

// bulk posts documents to an exporters' port, as Camunda's exporter does.
func (s *stack) bulk(elastic, token string, documents ...string) (status int, answer string) {
	s.t.Helper()
	var body strings.Builder
	for _, d := range documents {
		fmt.Fprintf(&body, "{\"index\":{\"_index\":\"i\",\"_id\":\"1-1\"}}\n%s\n", d)
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+elastic+"/_bulk", strings.NewReader(body.String()))
	if err != nil {
		s.t.Fatal(err)
	}
	req.SetBasicAuth("exporter", token)
	res, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// TestASourceFillsTheDeadLettersForItselfAlone: one token posts 54 bulks, each of a
// document of 5 MB that is no record, to two apis at once. Other sources still get theirs
// dead-lettered, and the metric that the alert is made of counts them.
func TestASourceFillsTheDeadLettersForItselfAlone(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.startNATS()
	file, tokens := s.tokensOf("hostile", "other")
	elastic, second, secondHTTP, secondOps := programtest.Address(), programtest.Address(), programtest.Address(), programtest.Address()
	api := s.startAPIWith(file, "--elasticsearch", elastic)
	twin := start(t, "api", "--http", secondHTTP, "--ops", secondOps, "--nats", "nats://"+s.nats, "--tokens", file,
		"--fingerprint-key", filepath.Join(t.TempDir(), "key"), "--elasticsearch", second)
	s.waitReady(api, s.ops)
	s.waitReady(twin, secondOps)

	junk := func() string {
		text := make([]byte, 5_000_000)
		for i := range text {
			text[i] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[rand.IntN(64)]
		}
		return `{"x":"` + string(text) + `"}`
	}
	const bulks = 54
	var all sync.WaitGroup
	var mu sync.Mutex
	got := make(map[int]int)
	for i := range bulks {
		all.Go(func() {
			for {
				status, answer := s.bulk([]string{elastic, second}[i%2], tokens[0], junk())
				if status == http.StatusServiceUnavailable && strings.Contains(answer, "overloaded") {
					time.Sleep(100 * time.Millisecond) // short of memory; the exporter posts it again
					continue
				}
				if status == http.StatusTooManyRequests && !strings.Contains(answer, "dead_letters_full") {
					t.Errorf("refused with %s", answer)
				}
				mu.Lock()
				got[status]++
				mu.Unlock()
				return
			}
		})
	}
	all.Wait()
	if got[http.StatusOK] < 15 || got[http.StatusOK]+got[http.StatusTooManyRequests] != bulks || got[http.StatusTooManyRequests] == 0 {
		t.Errorf("answered %v, want some 200 and some 429", got)
	}
	for i, at := range []string{elastic, second} {
		status, answer := s.bulk(at, tokens[1], fmt.Sprintf(`{"theirs":%d}`, i), fmt.Sprintf(`{"partitionId":1,"position":%d,"key":1,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","timestamp":%d,"value":{}}`, i+1, time.Now().UnixMilli()))
		if status != http.StatusOK || !strings.Contains(answer, `"errors":false`) {
			t.Errorf("another source at %s: %d %s", at, status, answer)
		}
	}
	eventually(t, 20*time.Second, func() error {
		for _, ops := range []string{s.ops, secondOps} {
			if n := s.metric(ops, "sluice_stream_dead_letters_written"); n != float64(got[http.StatusOK]+2) {
				return fmt.Errorf("%s counts %v dead letters, want %d", ops, n, got[http.StatusOK]+2)
			}
		}
		return nil
	})
}
