package endtoend

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// secondToken gives `sluice up` a token beside its own, of a subject who is no
// admin. The file of tokens is followed.
func (s *stack) secondToken() (token string) {
	s.t.Helper()
	made, tokens := s.tokensOf("plain")
	line, err := os.ReadFile(made)
	if err != nil {
		s.t.Fatal(err)
	}
	file, err := os.OpenFile(filepath.Join(s.data, "tokens.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Write(append([]byte("\n"), line...)); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, 10*time.Second, func() error {
		res, _ := s.sendWith(http.Header{"Authorization": tokens}, http.MethodGet, aField, nil)
		if res.StatusCode == http.StatusUnauthorized {
			return fmt.Errorf("the second token is answered %s", res.Status)
		}
		return nil
	})
	return tokens[0]
}

// TestHonestAnswers asks `sluice up` for what an answer must say, and what it must
// not leave out.
func TestHonestAnswers(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.flags = []string{"--max-record-bytes", fmt.Sprint(12 << 20)}
	s.up()
	plain := s.secondToken()
	const user = "/spm/login/current/user"

	t.Run("what was ignored is named", func(t *testing.T) {
		res, body := s.sendWith(http.Header{"Authorization": {plain}}, http.MethodPatch, user, []byte(`{"name":"Ada","Status":true,"projects":[{"id":"p","GRANT":{}}]}`))
		if got := res.Header.Get("Sluice-Ignored"); wantOK(res, body) != nil || got != `"#/Status", "#/projects/0/GRANT"` {
			t.Errorf("%v, Sluice-Ignored: %s", wantOK(res, body), got)
		}
		if _, body := s.sendWith(http.Header{"Authorization": {plain}}, http.MethodGet, user, nil); !strings.Contains(body, `"Ada"`) || strings.Contains(strings.ToLower(body), "grant") {
			t.Errorf("stored is %s", body)
		}
	})
	t.Run("HEAD works where GET does", func(t *testing.T) {
		for _, path := range []string{user, "/openapi.json", "/docs"} {
			get, _ := s.send(http.MethodGet, path, "")
			head, body := s.send(http.MethodHead, path, "")
			if get.StatusCode != http.StatusOK || head.StatusCode != http.StatusOK || body != "" {
				t.Errorf("%s: GET %s, HEAD %s with %d bytes", path, get.Status, head.Status, len(body))
			}
		}
	})
	t.Run("who waits hears when it is stored", func(t *testing.T) {
		for i, wait := range []http.Header{nil, {"Prefer": {"wait=20"}}} {
			path := "/flow/flowRecord/batch"
			if wait == nil {
				path += "?wait=stored"
			}
			res, body := s.sendWith(wait, http.MethodPost, path, fmt.Appendf(nil, `{"id":"w-%d"}`, i))
			if wantOK(res, body) != nil || res.Header.Get("Sluice-Stored") != "true" {
				t.Errorf("%v: %v, Sluice-Stored %q", wait, wantOK(res, body), res.Header.Get("Sluice-Stored"))
			}
		}
		if got, err := s.query("SELECT count() FROM flow.records"); err != nil || got != "2" {
			t.Errorf("%s records, %v", got, err)
		}
	})
	t.Run("a client's request id comes back, and a problem has an address", func(t *testing.T) {
		_, docs := s.send(http.MethodGet, "/docs", "")
		for body, pointer := range map[string]string{
			`{}`: `"#/valueType"`, `{"index":{"_index":"zeebe-record","_id":"1-1"}}`: `"#/valueType"`,
			`{"took":3,"hits":{"hits":[{"_source":{"id":"1-1"}}]}}`: `"#/valueType"`, `[{"id":"a"},{}]`: `"#/1/valueType"`,
		} {
			res, answer := s.sendWith(http.Header{"X-Request-Id": {"mine-4711"}}, http.MethodPost, "/flow/flowRecord/batch", []byte(body))
			if res.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(answer, pointer) || res.Header.Get("X-Request-Id") != "mine-4711" {
				t.Errorf("%s: %s %s with X-Request-Id %q", body, res.Status, answer, res.Header.Get("X-Request-Id"))
			}
			_, code, _ := strings.Cut(answer, `"type":"/docs#`)
			code, _, _ = strings.Cut(code, `"`)
			if code == "" || !strings.Contains(docs, `id="`+code+`"`) {
				t.Errorf("%s: /docs does not have the type %q", body, code)
			}
		}
	})
	t.Run("the longest record is an option", func(t *testing.T) {
		frame := `{"id":"%s","valueType":"DEPLOYMENT","value":{"resource":"%s"}}`
		if res, body := s.post(fmt.Appendf(nil, frame, "l-1", noise(11<<20))); wantOK(res, body) != nil {
			t.Errorf("11 MiB of 12: %v", wantOK(res, body))
		}
		if res, body := s.post(fmt.Appendf(nil, frame, "l-2", noise(12<<20))); res.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("more than 12 MiB: %s %s", res.Status, body)
		}
		s.eventuallyQuery(30*time.Second, "SELECT length(JSONExtractString(extra, 'resource')) FROM flow.records WHERE id = 'l-1'", fmt.Sprint(11<<20))
	})
}

// TestSlowClientsStarveNoOthers: connections that announce 512 KiB and send 16 KiB a
// second used to have the small posts of all others refused for half a minute.
func TestSlowClientsStarveNoOthers(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.flags = []string{"--max-in-flight", fmt.Sprint(64 << 20)} // its half for small bodies holds 64 of them
	s.up()
	plain := s.secondToken()
	var slow sync.WaitGroup
	defer slow.Wait()
	for range 96 {
		conn, err := net.Dial("tcp", s.http)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		slow.Go(func() {
			fmt.Fprintf(conn, "POST /flow/flowRecord/batch HTTP/1.1\r\nHost: %s\r\nAuthorization: %s\r\nContent-Length: %d\r\n\r\n[", s.http, plain, 512<<10)
			for {
				if _, err := conn.Write([]byte(strings.Repeat(" ", 4<<10))); err != nil {
					return
				}
				time.Sleep(250 * time.Millisecond)
			}
		})
	}
	eventually(t, 10*time.Second, func() error {
		if held := s.metric(s.ops, "sluice_api_bodies_in_flight_bytes"); held < 96*16<<10 {
			return fmt.Errorf("the slow hold %.0f bytes", held)
		}
		return nil
	})
	for begun, i := time.Now(), 0; time.Since(begun) < 2*time.Second; i++ {
		for _, token := range []string{s.token, plain} { // another subject, and the same
			at := time.Now()
			res, body := s.sendWith(http.Header{"Authorization": {token}}, http.MethodPost, "/flow/flowRecord/batch", fmt.Appendf(nil, `{"id":"%.1s-%d","value":{"errorMessage":"%s"}}`, token, i, noise(20_000)))
			if wantOK(res, body) != nil || time.Since(at) > 2*time.Second {
				t.Fatalf("a small post took %s: %v", time.Since(at), wantOK(res, body))
			}
		}
	}
}
