package load_test

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/load"
)

// door is an api that stores each key once. It fails as configured, before or after it
// stores.
type door struct {
	*httptest.Server
	token  string
	before func(n int, w http.ResponseWriter) bool // true: rejected, not stored
	after  func(n int, w http.ResponseWriter) bool // true: stored, but not answered OK

	mu       sync.Mutex
	attempts int
	callers  map[string]int    // requests by Authorization
	bodies   map[string]string // by key
	ids      map[string]int    // number of copies stored
	keySum   uint64
	objects  int // requests with one record, not in an array
	mismatch int // requests that no correct client sends
}

func openDoor(t *testing.T) *door {
	t.Helper()
	d := &door{callers: map[string]int{}, bodies: map[string]string{}, ids: map[string]int{}}
	d.Server = httptest.NewServer(d)
	t.Cleanup(d.Close)
	return d
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	n := d.attempts
	d.attempts++
	d.callers[r.Header.Get("Authorization")]++
	d.mu.Unlock()
	if r.Method != http.MethodPost || r.URL.Path != load.BatchPath || r.Header.Get("Content-Type") != "application/json" {
		d.wrong()
	}
	if d.token != "" && r.Header.Get("Authorization") != "Bearer "+d.token {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if d.before != nil && d.before(n, w) {
		return
	}
	body, err := readBody(r)
	if err != nil {
		d.wrong()
		return
	}
	d.store(r.Header.Get("Idempotency-Key"), body)
	if d.after != nil && d.after(n, w) {
		return
	}
	io.WriteString(w, `{"status":"OK"}`)
}

func readBody(r *http.Request) ([]byte, error) {
	if r.Header.Get("Content-Encoding") != "gzip" {
		return io.ReadAll(r.Body)
	}
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

func (d *door) wrong() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mismatch++
}

func (d *door) store(key string, body []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if before, ok := d.bodies[key]; ok && key != "" {
		if before != string(body) {
			d.mismatch++ // the key was used with another body
		}
		return
	}
	d.bodies[key] = string(body)
	var records []struct {
		ID  string `json:"id"`
		Key int64  `json:"key"`
	}
	if body[0] == '{' {
		d.objects++
		body = append(append([]byte{'['}, body...), ']')
	}
	if json.Unmarshal(body, &records) != nil {
		d.mismatch++
	}
	for _, r := range records {
		d.ids[r.ID]++
		d.keySum += uint64(r.Key)
	}
}

func hangUp(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		conn.Close()
	}
}

func refuse(w http.ResponseWriter, status int, retryAfter string) {
	if retryAfter != "" {
		w.Header().Set("Retry-After", retryAfter)
	}
	w.WriteHeader(status)
	io.WriteString(w, `{"code":"refused"}`)
}

// holds checks that exactly the acknowledged records are stored, each once.
func (d *door) holds(t *testing.T, want load.Totals) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if int64(len(d.ids)) != want.Records || d.keySum != want.KeySum {
		t.Errorf("%d records with key sum %d are stored, acknowledged were %d with %d", len(d.ids), d.keySum, want.Records, want.KeySum)
	}
	for id, n := range d.ids {
		fatal.When(t, n != 1, "record %s is stored %d times", id, n)
	}
	expect.Not(t, d.mismatch > 0, "%d requests were not as an honest client sends them", d.mismatch)
}

// slowly delays a handler.
func slowly(d time.Duration) bool {
	time.Sleep(d)
	return false
}
