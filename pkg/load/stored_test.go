package load_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/load"
)

// warehouse answers, after a while, whether records are stored.
type warehouse struct {
	began time.Time
	after time.Duration
	count int64
	row   string
}

func (w *warehouse) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	switch sql := r.URL.Query().Get("query"); {
	case strings.Contains(sql, "uniqExact"):
		io.WriteString(out, w.row+"\n")
	case time.Since(w.began) < w.after:
		io.WriteString(out, "7\n")
	default:
		fmt.Fprintln(out, w.count)
	}
}

func TestTheReportHasTheTimeUntilAllWasStored(t *testing.T) {
	const records = 1000
	acked := func(t *testing.T) load.Totals {
		t.Helper()
		report, err := load.Run(t.Context(), load.Config{URL: openDoor(t).URL, Records: records, Seed: 3})
		fatal.If(t, err)
		return report.Acked
	}(t)
	const wait = 300 * time.Millisecond
	for name, tt := range map[string]struct {
		count int64
		row   string
		err   error
	}{
		"all, after a while":    {records, acked.Row(), nil},
		"one is there twice":    {records + 1, "1001\t1000\t5\t6", load.ErrNotStored},
		"as many, but not them": {records, "1000\t1000\t5\t6", load.ErrNotStored},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewServer(&warehouse{began: time.Now(), after: wait, count: tt.count, row: tt.row})
			defer http.DefaultClient.CloseIdleConnections()
			defer w.Close()
			report, err := load.Run(t.Context(), load.Config{URL: openDoor(t).URL, Records: records, Seed: 3,
				Stored: load.StoredIn(strings.TrimPrefix(w.URL, "http://"))})
			fatal.When(t, !errors.Is(err, tt.err), "error is %v, want %v", err, tt.err)
			var text strings.Builder
			fatal.If(t, report.WriteText(&text))
			if tt.err != nil {
				if report.StoredSeconds != 0 || report.MeasuredUntil != load.NotStored || strings.Contains(text.String(), load.AllStored) {
					t.Errorf("the report has all as stored:\n%s", &text)
				}
				return
			}
			if s := report.StoredSeconds; s < report.ElapsedSeconds || s < 0.1 || report.StoredPerSec != records/s {
				t.Errorf("stored after %v s, %v records per second, the last answer after %v s", s, report.StoredPerSec, report.ElapsedSeconds)
			}
			expect.Not(t, !strings.Contains(text.String(), "until "+load.AllStored), "the text lacks the end of the measurement:\n%s", &text)
		})
	}
}

// TestTheAPIReportsWhenAllIsStored: StoredAt asks under each token, and retries while records
// are missing or the api is unavailable. An api without the header is an error.
func TestTheAPIReportsWhenAllIsStored(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	answers := []func(http.ResponseWriter){
		func(w http.ResponseWriter) { w.Header().Set("Sluice-Stored", "false") },
		func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
		func(w http.ResponseWriter) { w.Header().Set("Sluice-Stored", "true") },
		func(w http.ResponseWriter) { w.Header().Set("Sluice-Stored", "true") },
		func(w http.ResponseWriter) {},
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, fmt.Sprint(r.URL.Path, " ", r.Header.Get("Authorization"), " ", r.Header.Get("Prefer"), " ", string(body)))
		answers[min(len(asked), len(answers))-1](w)
	}))
	defer api.Close()
	stored := load.StoredAt(load.Config{URL: api.URL, Token: "one", Tokens: []string{"two"}})
	fatal.If(t, stored(t.Context(), load.Totals{}))
	one, two := load.BatchPath+" Bearer one wait=30 []", load.BatchPath+" Bearer two wait=30 []"
	expect.Equal(t, "asked", []string{one, one, one, two}, asked)
	if err := stored(t.Context(), load.Totals{}); err == nil {
		t.Error("an api without the member is accepted")
	}
}
