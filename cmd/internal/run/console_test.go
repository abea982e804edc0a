package run_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/run"
	"sluice/pkg/auth"
	"sluice/pkg/console"
	"sluice/pkg/dial"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// consoleOnNATS is a console on a real NATS without ClickHouse, and two browsers: one
// with the scope admin, one with only read.
type consoleOnNATS struct {
	t            *testing.T
	lanes        *stream.Stream
	url          string
	admin, looks *http.Client
	csrf         map[*http.Client]string
}

func newConsole(t *testing.T) *consoleOnNATS {
	t.Helper()
	log, reg := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	server := natstest.Start(t)
	nc, err := dial.Connect(dial.Config{URL: server.URL, Name: "test"}, log, reg)
	fatal.If(t, err)
	t.Cleanup(nc.Close)
	lanes, err := stream.Open(t.Context(), nc, stream.Config{}, log, reg)
	fatal.If(t, err)

	file := filepath.Join(t.TempDir(), "tokens.yaml")
	admin := auth.Entry{Subject: "root", SHA256: auth.Digest("sluice_admin"), Scopes: []flow.Scope{flow.ScopeAdmin}}
	looks := auth.Entry{Subject: "ann", SHA256: auth.Digest("sluice_looks"), Scopes: []flow.Scope{flow.ScopeRead}}
	fatal.If(t, os.WriteFile(file, []byte(admin.Line()+"\n"+looks.Line()+"\n"), 0o600))
	tokens, err := run.NewTokens(file, log)
	fatal.If(t, err)
	settings := run.Console{Page: console.Config{Listen: "127.0.0.1:0"}, ClickHouse: run.ClickHouse{Warehouse: warehouse.Config{URL: "clickhouse://127.0.0.1:1/flow"}}}
	page, closing, err := settings.New(lanes, tokens, log, reg)
	fatal.If(t, err)
	t.Cleanup(closing)
	address, err := page.Listen()
	fatal.If(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- page.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		fatal.If(t, <-ended)
	})
	c := &consoleOnNATS{t: t, lanes: lanes, url: "http://" + address.String(), csrf: map[*http.Client]string{}}
	c.admin, c.looks = c.browser("sluice_admin"), c.browser("sluice_looks")
	return c
}

// browser signs in.
func (c *consoleOnNATS) browser(token string) *http.Client {
	c.t.Helper()
	jar, err := cookiejar.New(nil)
	fatal.If(c.t, err)
	b := &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
	_, page := c.send(b, "/sign-in", url.Values{"token": {token}, "next": {"/dead"}})
	found := regexp.MustCompile(`name="csrf" value="([^"]+)"`).FindStringSubmatch(page)
	fatal.When(c.t, found == nil, "signing in leads to\n%s", page)
	c.csrf[b] = found[1]
	return b
}

// send posts a form, or gets a page without one, and follows redirects.
func (c *consoleOnNATS) send(b *http.Client, path string, form url.Values) (status int, page string) {
	c.t.Helper()
	method := http.MethodGet
	if form != nil {
		method = http.MethodPost
		form.Set("csrf", c.csrf[b])
	}
	req, err := http.NewRequest(method, c.url+path, strings.NewReader(form.Encode()))
	fatal.If(c.t, err)
	req.Header.Set("Accept", "text/html")
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	res, err := b.Do(req)
	fatal.If(c.t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	fatal.If(c.t, err)
	return res.StatusCode, string(body)
}

// figure is a number that links to a list.
var figure = regexp.MustCompile(`<a class="fig"[^>]*>([^<]*)</a>`)

// shows fails unless a page has the status and every part, ignoring links of numbers.
func (c *consoleOnNATS) shows(b *http.Client, path string, form url.Values, status int, parts ...string) string {
	c.t.Helper()
	got, page := c.send(b, path, form)
	expect.Not(c.t, got != status, "%s: answered %d, want %d", path, got, status)
	text := figure.ReplaceAllString(page, "$1")
	for _, part := range parts {
		expect.Not(c.t, !strings.Contains(text, part), "%s: %q is not in\n%s", path, part, text)
	}
	return page
}

// publishDead dead-letters records, as if ClickHouse had rejected them.
func (c *consoleOnNATS) publishDead(n uint64) {
	c.t.Helper()
	for seq := range n {
		fatal.If(c.t, stream.NewDeadLetters(c.lanes).Publish(c.t.Context(), flow.Dead{
			Message: flow.Message{
				Lane: 0, Incarnation: 1, Seq: 100 + seq, Topic: stream.RecordTopic(0), Subject: "engine", Source: "engine",
				Records: 1, Received: time.Now(), Body: []byte(`{"id":"1-1","value":{"errorMessage":"<poison>"}}`),
			},
			Index: 2, Code: "refused", Reason: "Expression: (error_message != 'poison')",
		}))
	}
}

func (c *consoleOnNATS) letters() uint64 {
	c.t.Helper()
	room, err := stream.NewDeadLetters(c.lanes).Room(c.t.Context())
	fatal.If(c.t, err)
	return room.Letters
}

func (c *consoleOnNATS) messages() uint64 {
	c.t.Helper()
	fatal.If(c.t, c.lanes.Refresh(c.t.Context()))
	return c.lanes.Lanes()[0].Messages
}

// TestDeadLettersAreReplayedAndDroppedByAnAdmin follows an admin: list, view, dry run,
// execute, and the recorded user.
func TestDeadLettersAreReplayedAndDroppedByAnAdmin(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	c.shows(c.looks, "/dead", nil, http.StatusOK, "No dead letters.")
	c.publishDead(4)
	c.shows(c.admin, "/dead", nil, http.StatusOK, "The newest 4 of 4", "refused", "error_message", "Replay selected…")
	c.shows(c.admin, "/dead?source=other", nil, http.StatusOK, "No matches.")
	c.shows(c.admin, "/dead?lane=x", nil, http.StatusBadRequest, "is not a number")
	c.shows(c.looks, "/dead/1", nil, http.StatusOK, "record 2 of message 100 of lane 0", "<mark>&#34;&lt;poison&gt;&#34;</mark>", "/value/errorMessage")
	if got, bytes := c.send(c.looks, "/dead/1/bytes", nil); got != http.StatusOK || bytes != `{"id":"1-1","value":{"errorMessage":"<poison>"}}` {
		t.Errorf("the bytes: %d %s", got, bytes)
	}
	c.shows(c.looks, "/dead/99", nil, http.StatusNotFound, "Dead letter 99 does not exist")

	// The scope read cannot even run a dry run.
	if page := c.shows(c.looks, "/dead", nil, http.StatusOK); strings.Contains(page, "/dead/plan\" class") || strings.Contains(page, "Replay") && strings.Contains(page, "<button name=\"do\"") {
		t.Error("a user with the scope read alone is offered to replay")
	}
	for _, path := range []string{"/dead/plan", "/dead/replay", "/dead/drop"} {
		c.shows(c.looks, path, url.Values{"number": {"1"}, "do": {"drop"}, "forever": {"1"}}, http.StatusForbidden, "the scope admin")
	}

	// Dry runs change nothing.
	c.shows(c.admin, "/dead/plan", url.Values{"do": {"replay"}, "number": {"1", "2"}}, http.StatusOK, "2 letters would be replayed", "Nothing has been done yet")
	c.shows(c.admin, "/dead/plan", url.Values{"do": {"drop"}, "all": {"1"}, "code": {"refused"}, "upto": {"3"}}, http.StatusOK, "3 letters would be dropped", `value="1 2 3 "`)
	c.shows(c.admin, "/dead/plan", url.Values{"do": {"drop"}}, http.StatusBadRequest, "No letter selected")
	c.shows(c.admin, "/dead/drop", url.Values{"numbers": {"3"}}, http.StatusBadRequest, "Nothing was dropped")
	c.shows(c.admin, "/dead/drop", url.Values{"numbers": {"three"}, "forever": {"1"}}, http.StatusBadRequest, "is not the number of a dead letter")
	if letters, messages := c.letters(), c.messages(); letters != 4 || messages != 0 {
		t.Fatalf("%d letters and %d messages before anything was confirmed, want 4 and 0", letters, messages)
	}

	c.shows(c.admin, "/dead/replay", url.Values{"numbers": {"1 2"}}, http.StatusOK, "2 replayed")
	c.shows(c.admin, "/dead/replay", url.Values{"numbers": {"1 2"}}, http.StatusOK, "2 no longer exist")
	c.shows(c.admin, "/dead/drop", url.Values{"numbers": {"3"}, "forever": {"1"}}, http.StatusOK, "1 dropped")
	if letters := c.letters(); letters != 1 || c.messages() == 0 {
		t.Errorf("%d letters and %d messages, want 1 letter and those that were replayed", letters, c.messages())
	}
	c.shows(c.looks, "/dead", nil, http.StatusOK, `replayed</td><td class="name">root`, `dropped</td><td class="name">root`, "The newest 1 of 1")
}
