package main_test

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	trial "sluice/cmd/internal/chaos"
)

// taker takes records and fails now and then, before or after it has taken them.
type taker struct {
	mu     sync.Mutex
	random *rand.Rand
	first  map[string]map[string]any // every record as it came first, by what names it
	starts map[string]bool           // first records of requests
	times  int64                     // records acknowledged
	t      *testing.T
}

func (d *taker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client gave up
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.random.IntN(10) == 0 {
		http.Error(w, "before", http.StatusServiceUnavailable)
		return
	}
	var records []map[string]any
	decoder := json.NewDecoder(strings.NewReader(string(body)))
	decoder.UseNumber()
	if err := decoder.Decode(&records); err != nil {
		d.t.Errorf("not an array of records: %v", err)
	}
	for i, record := range records {
		name, full := record["position"].(json.Number)
		if !full {
			name = json.Number(strings.TrimPrefix(record["id"].(string), "1-"))
		}
		if i == 0 {
			d.starts[name.String()] = true
		}
		delete(record, "sequence") // may differ
		before, again := d.first[name.String()]
		if full {
			delete(record, "id") // follows from the position, and may be missing
		}
		if again && !reflect.DeepEqual(before, record) {
			d.t.Errorf("record %s came first as\n%v\nand then as\n%v", name, before, record)
		}
		d.first[name.String()] = record
	}
	if d.random.IntN(10) == 0 {
		http.Error(w, "after", http.StatusServiceUnavailable)
		return
	}
	d.times += int64(len(records))
	io.WriteString(w, `{"status":"OK"}`)
}

func TestAnExporterSendsEverythingAndSomeOfItAgain(t *testing.T) {
	for name, idsOnly := range map[string]bool{"with positions": false, "with ids alone": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &taker{random: rand.New(rand.NewPCG(3, 4)), first: map[string]map[string]any{}, starts: map[string]bool{}, t: t}
			server := httptest.NewServer(d)
			defer server.Close()
			records, again, fallbacks, wrote, counted, err := trial.ExportTo(t.Context(), server.URL, t.TempDir(), 3000, 3*time.Second, idsOnly)
			if err != nil {
				t.Fatal(err)
			}
			var n int64
			for _, r := range wrote {
				n += r.Records()
			}
			if n < 1000 || int64(len(d.first)) != n || counted != n {
				t.Errorf("%d records came and %d are counted, the log holds %d; want thousands", len(d.first), counted, n)
			}
			if fallbacks == 0 || again == 0 {
				t.Errorf("%d fall-backs, %d records sent again after they were acknowledged: nothing was repeated", fallbacks, again)
			}
			if records-again != n {
				t.Errorf("%d records were acknowledged, %d of them again: the log holds %d", records, again, n)
			}
		})
	}
}
