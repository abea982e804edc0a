package endtoend

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

const (
	currentUser = "/spm/login/current/user"
	aField      = "/ds/dataset/field/custom/orders/total%2Fsum"
)

// TestUsersAndFields changes a user and a dataset field in every way, reads them back,
// and reads them again after a kill.
func TestUsersAndFields(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.up()
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		want                     string
	}{
		{"a user is patched", "PATCH", currentUser, `{"name":"Ann","tableFieldsSetting":{"a":1,"b":{"c":2}},"unknown":7}`, 200, `{"status":"OK"}`},
		{"what was patched is read", "GET", currentUser, "", 200, `{"id":"local","name":"Ann","tableFieldsSetting":{"a":1,"b":{"c":2}},"unknown":7}`},
		{"a field is put", "PUT", aField, `{"name":"Total","biTypeFmt":"a:b","size":9007199254740993}`, 200, `{"status":"OK"}`},
		{"a field is read", "GET", aField, "", 200, `{"biTypeFmt":"a:b","id":"total/sum","name":"Total","size":9007199254740993,"tableId":"orders"}`},
		{"a field is deleted", "DELETE", aField, "", 200, `{"status":"OK"}`},
		{"a field is put again", "PUT", aField, `{"name":"Revived"}`, 200, `{"status":"OK"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res, body := s.send(tt.method, tt.path, tt.body)
			expect.Not(t, res.StatusCode != tt.status || !strings.Contains(body, tt.want), "answered %s %s, want %d with %s", res.Status, body, tt.status, tt.want)
		})
	}
	t.Run("concurrent patches of different members are all applied", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if res, body := s.send("PATCH", currentUser, fmt.Sprintf(`{"m%d":%d}`, i, i)); wantOK(res, body) != nil {
					t.Error(wantOK(res, body))
				}
			})
		}
		wg.Wait()
		_, body := s.send("GET", currentUser, "")
		for i := range 20 {
			fatal.If(t, wantText(body, fmt.Sprintf(`"m%d":%d`, i, i)))
		}
	})
	t.Run("a write over a later state is rejected", func(t *testing.T) {
		res, _ := s.send("GET", aField, "")
		tag := res.Header.Get("ETag")
		if res, body := s.sendIf(tag, "PUT", aField, `{"name":"First"}`); wantOK(res, body) != nil {
			t.Error(wantOK(res, body))
		}
		if res, body := s.sendIf(tag, "PUT", aField, `{"name":"Second"}`); res.StatusCode != http.StatusPreconditionFailed {
			t.Errorf("answered %s %s, want 412", res.Status, body)
		}
	})

	s.eventuallyQuery(10*time.Second, "SELECT countIf(kind = 'user.patched'), countIf(kind = 'field.put') FROM flow.changes", "21\t3")
	s.eventuallyQuery(10*time.Second, "SELECT countIf(kind = 'field.deleted') FROM flow.changes", "1")

	p.signal(syscall.SIGKILL)
	<-p.Exited()
	s.up()
	eventually(t, 30*time.Second, func() error {
		_, body := s.send("GET", currentUser, "")
		return wantText(body, `"name":"Ann"`)
	})
	if _, body := s.send("GET", aField, ""); wantText(body, `"name":"First"`) != nil {
		t.Error(wantText(body, `"name":"First"`))
	}
	s.eventuallyQuery(20*time.Second, "SELECT count(), uniqExact(stream_seq) FROM flow.changes", "25\t25")
}

// sendIf is send with If-Match.
func (s *stack) sendIf(tag, method, path, body string) (*http.Response, string) {
	s.t.Helper()
	return s.sendWith(http.Header{"If-Match": {tag}}, method, path, []byte(body))
}
