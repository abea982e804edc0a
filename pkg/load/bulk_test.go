package load_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"sluice/pkg/load"
)

// TestBulksAreOfOnePartitionEach, of which there is one request in flight at a
// time, and a bulk that failed comes again as it was.
func TestBulksAreOfOnePartitionEach(t *testing.T) {
	var mu sync.Mutex
	attempts, inFlight, stored := 0, map[string]int{}, map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		user, password, _ := r.BasicAuth()
		if err != nil || r.URL.Path != load.BulkPath || user == "" || password != "secret" {
			t.Errorf("%s by %q, %q: %v", r.URL.Path, user, password, err)
		}
		lines := strings.Split(strings.TrimSuffix(string(body), "\n"), "\n")
		var records []map[string]any
		for i := 0; i+1 < len(lines); i += 2 {
			record := map[string]any{}
			if err := json.Unmarshal([]byte(lines[i+1]), &record); err != nil || !strings.HasPrefix(lines[i], "action ") {
				t.Errorf("%v in %s after %s", err, lines[i+1], lines[i])
			}
			records = append(records, record)
		}
		partition := strings.Fields(lines[0])[1]
		mu.Lock()
		attempts++
		fails := attempts == 2
		inFlight[partition]++
		if inFlight[partition] > 1 {
			t.Errorf("two bulks of partition %s at a time", partition)
		}
		for _, record := range records {
			if fmt.Sprint(record["partitionId"]) != partition {
				t.Errorf("a record of partition %v in a bulk of %s", record["partitionId"], partition)
			}
			if !fails {
				stored[record["id"].(string)]++
			}
		}
		mu.Unlock()
		defer func() { mu.Lock(); inFlight[partition]--; mu.Unlock() }()
		if fails {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, `{"took":3,"errors":false,"items":[%s]}`, strings.Repeat(`{"index":{"_index":"`+strings.Repeat("i", 100)+`","status":201}},`, len(records)))
	}))
	defer server.Close()
	bulk := func(dst []byte, partition int64, record []byte) []byte {
		return fmt.Appendf(dst, "action %d\n%s\n", partition, record)
	}
	report, err := load.Run(t.Context(), load.Config{URL: server.URL, Token: "secret", Bulk: bulk, Records: 9500, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	if report.Acked.Records != 9500 || len(stored) != 9500 || report.Requests != 10 || report.Retries != 1 {
		t.Errorf("%d records acknowledged in %d requests after %d retries, %d stored; want 9500 in 10 after 1", report.Acked.Records, report.Requests, report.Retries, len(stored))
	}
	partitions := map[string]bool{}
	for id := range stored {
		partitions[id[:1]] = true
	}
	if len(partitions) != 3 {
		t.Errorf("records of the partitions %v, want three", partitions)
	}
	t.Run("what was not taken is an error", func(t *testing.T) {
		server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"took":1,"errors":true,"items":[]}`) })
		report, err := load.Run(t.Context(), load.Config{URL: server.URL, Bulk: bulk, Records: 10, Seed: 3})
		if err == nil || report.Acked.Records != 0 {
			t.Errorf("%d records acknowledged, error %v", report.Acked.Records, err)
		}
	})
}
