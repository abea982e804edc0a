package endtoend

import (
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/programtest"
)

// visitor is a browser of the console.
type visitor struct {
	t      *testing.T
	url    string
	client *http.Client
}

// visit signs in by the link that `sluice up` prints.
func visit(t *testing.T, greeting string) *visitor {
	t.Helper()
	found := regexp.MustCompile(`(http://[^ ]+)/sign-in#once=([^ ]+) `).FindStringSubmatch(greeting)
	fatal.When(t, found == nil, "the greeting has no link to the console:\n%s", greeting)
	v := newVisitor(t, found[1])
	if status, page := v.send("/sign-in/once", url.Values{"code": {found[2]}}); status != http.StatusOK || !strings.Contains(page, "Sign out") {
		t.Fatalf("the link leads to %d\n%s", status, page)
	}
	return v
}

func newVisitor(t *testing.T, at string) *visitor {
	jar, err := cookiejar.New(nil)
	fatal.If(t, err)
	return &visitor{t: t, url: at, client: &http.Client{Jar: jar, Timeout: 30 * time.Second}}
}

func (v *visitor) send(path string, form url.Values) (status int, page string) {
	v.t.Helper()
	method := http.MethodGet
	if form != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequest(method, v.url+path, strings.NewReader(form.Encode()))
	fatal.If(v.t, err)
	req.Header.Set("Accept", "text/html")
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	res, err := v.client.Do(req)
	fatal.If(v.t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	fatal.If(v.t, err)
	return res.StatusCode, string(body)
}

func (v *visitor) eventuallyShows(path string, want ...string) {
	v.t.Helper()
	eventually(v.t, 30*time.Second, func() error {
		status, page := v.send(path, nil)
		for _, part := range want {
			if !strings.Contains(page, part) {
				return fmt.Errorf("%s answers %d without %q:\n%s", path, status, part, page)
			}
		}
		return nil
	})
}

var (
	lineOfAttention = regexp.MustCompile(`<li class="(soon|urgent)"><strong>[^<]*</strong>(?:<span class="text">([^<]*)</span>)?`)
	workOfProcesses = regexp.MustCompile(`^(Open incidents|Active instances without an event for 60 min|(User tasks|Timers) past their due date|Jobs past their deadline)$`)
)

// needsNothing fails if the overview lists problems other than the simulated engine's open work of processes.
func (v *visitor) needsNothing() {
	v.t.Helper()
	_, page := v.send("/", nil)
	for _, line := range lineOfAttention.FindAllStringSubmatch(page, -1) {
		if line[1] != "soon" || !workOfProcesses.MatchString(line[2]) {
			v.t.Errorf("%s needs attention:\n%s", line[0], page)
		}
	}
	if strings.Contains(page, "missing") || !strings.Contains(page, "Nothing needs attention.") && !lineOfAttention.MatchString(page) {
		v.t.Errorf("the overview is incomplete, or lacks Needs attention:\n%s", page)
	}
}

// TestTheConsoleShowsWhatUpDoes: start, follow the printed link, load, and look. Stop during a load and restart:
// every record is there once. A second console runs separately.
func TestTheConsoleShowsWhatUpDoes(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.empty = true
	p := s.up()
	greeting := p.text()
	for _, line := range []string{"curl ", "/flow/flowRecord/batch", s.chHTTP, "/metrics", s.data} {
		expect.Not(t, !strings.Contains(greeting, line), "the greeting does not show %q", line)
	}
	if at := strings.Index(greeting, "  console  "); at < 0 || at > strings.Index(greeting, "  api  ") {
		t.Errorf("the greeting does not begin with the console:\n%s", greeting)
	}
	v := visit(t, greeting)
	s.load("--records", "5000", "--batch", "500", "--connections", "1", "--seed", "1")
	v.eventuallyShows("/", ">5,000</a> in total", ">5,000</a> rows", "<td>running</td>", "5,000 accepted")
	v.needsNothing()
	v.eventuallyShows("/sources", "<h2 id=\"source-0\" class=\"name\">local</h2>", "<th scope=\"row\" class=\"name\">local</th>", "<th scope=\"row\" class=\"id\">1</th>")
	expect.Not(t, strings.Contains(greeting, s.token), "the greeting shows the token")
	s.load("--records", "20000", "--batch", "500", "--connections", "8", "--seed", "2", "--gzip")
	if code := p.stop(); code != 0 { // records are in flight
		t.Fatalf("stopped with exit %d, want 0", code)
	}
	s.up()
	s.stored(25000)

	listen, ops := programtest.Address(), programtest.Address()
	p = start(t, "sluice", "console", "--listen", listen, "--ops", ops, "--watch", s.ops, "--data", s.data, "--tokens", filepath.Join(s.data, "tokens.yaml"),
		"--nats", "nats://"+s.nats, "--clickhouse", "clickhouse://"+s.clickhouse+"/flow")
	s.waitReady(p, ops)
	token, err := os.ReadFile(filepath.Join(s.data, "token"))
	fatal.If(t, err)
	v = newVisitor(t, "http://"+listen)
	v.send("/sign-in", url.Values{"token": {strings.TrimSpace(string(token))}})
	v.eventuallyShows("/", "<td>running</td>", `<span class="id">2`, `http://`+s.ops+`</th><td>is ready`)
	if code, out := run(t, "sluice", "console", "--ops", ops, "--healthcheck"); code != 0 {
		t.Errorf("the health check exits with %d: %s", code, out)
	}
	expect.Equal(t, "stopped with exit", 0, p.stop())
}
