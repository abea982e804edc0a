package main

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

	"sluice/cmd/internal/deployment"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// taker is an api that fails now and then, before or after it accepts records.
type taker struct {
	mu     sync.Mutex
	random *rand.Rand
	first  map[string]map[string]any // the first copy of each record, by its identity
	starts map[string]bool           // first record of each request
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
		expect.Not(d.t, again && !reflect.DeepEqual(before, record), "record %s came first as\n%v\nand then as\n%v", name, before, record)
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
	for name, forms := range map[string][]form{
		"with positions": {asWritten, sortedMembers, withoutID}, "with ids alone": {onlyID, onlyIDSorted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &taker{random: rand.New(rand.NewPCG(3, 4)), first: map[string]map[string]any{}, starts: map[string]bool{}, t: t}
			server := httptest.NewServer(d)
			defer server.Close()
			s := &site{
				Deployment: &deployment.Deployment{Config: deployment.Config{Dir: t.TempDir()}, URL: server.URL},
				cfg:        Config{For: 3 * time.Second, Rate: 3000}, journal: newJournal(io.Discard),
			}
			l, err := newLedger(t.TempDir(), "one")
			fatal.If(t, err)
			defer l.close()
			s.ledgers = map[string]*ledger{"one": l}
			did, err := s.export(t.Context(), engine{"one", 1, 1, forms}, 7)
			fatal.If(t, err)
			o, err := l.oracle()
			fatal.If(t, err)
			n := o.Acked()
			if n < 1000 || int64(len(d.first)) != n || l.written() < did.Records {
				t.Errorf("%d records received, %d acknowledged, in %d lines of %d acknowledgements; want thousands", len(d.first), n, l.written(), did.Records)
			}
			expect.Not(t, did.Failures == 0 || did.Again == 0, "the exporter did %+v: nothing was repeated", did)
			expect.Not(t, did.Records-did.Again != n, "the exporter did %+v: the ledger holds %d", did, n)
		})
	}
}
