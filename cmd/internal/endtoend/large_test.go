package endtoend

import (
	"crypto/md5"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestLargeRecordsArriveWhole: an exporter would retry a rejected record forever, and
// export nothing after it.
func TestLargeRecordsArriveWhole(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.up()
	const longest = 8 << 20
	frame := `{"id":%q,"valueType":"DEPLOYMENT","value":{"resources":[{"resource":%q}]}}`
	room := func(id string, size int) int { return size - len(fmt.Sprintf(frame, id, "")) }
	for _, tt := range []struct {
		id       string
		resource string
		status   int
	}{
		{"l-1", noise(room("l-1", 2_130<<10)), http.StatusOK},                                  // above two megabytes, and incompressible
		{"l-2", strings.Repeat("<bpmn:task/>", 4_500_000/12), http.StatusOK},                   // a deployment
		{"l-3", noise(room("l-3", longest)), http.StatusOK},                                    // the longest
		{"l-4", noise(room("l-4", longest+1)), http.StatusRequestEntityTooLarge},               // one byte more
		{"l-5", strings.Repeat("x", room("l-5", longest+1)), http.StatusRequestEntityTooLarge}, // however well it compresses
	} {
		res, body := s.post(fmt.Appendf(nil, frame, tt.id, tt.resource))
		if res.StatusCode != tt.status || tt.status != http.StatusOK && !strings.Contains(body, "record_too_large") {
			t.Fatalf("%s, a record of %d bytes: %s %.300s, want %d", tt.id, len(tt.resource), res.Status, body, tt.status)
		}
		if tt.status == http.StatusOK {
			s.eventuallyQuery(30*time.Second,
				"SELECT length(JSONExtractString(extra, 'resources', 1, 'resource')), lower(hex(MD5(JSONExtractString(extra, 'resources', 1, 'resource')))) FROM flow.records WHERE id = '"+tt.id+"'",
				fmt.Sprintf("%d\t%x", len(tt.resource), md5.Sum([]byte(tt.resource))))
		}
	}
	s.eventuallyQuery(10*time.Second, "SELECT count() FROM flow.records WHERE startsWith(id, 'l-')", "3")
}

// noise is incompressible text that JSON does not escape.
func noise(n int) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	rng := rand.New(rand.NewPCG(uint64(n), 7))
	b := make([]byte, n)
	for i := range b {
		b[i] = letters[rng.IntN(len(letters))]
	}
	return string(b)
}
