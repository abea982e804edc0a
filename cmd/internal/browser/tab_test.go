package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"sluice/pkg/fatal"
)

// tab is a user's page. At its end it must have no script error, no violation of the
// content security policy, and no request to another host.
type tab struct {
	t    *testing.T
	ctx  context.Context
	host string // address of the console
	kept chan fetch.RequestID

	mu      sync.Mutex
	wrong   []string
	expects bool // the server is down: failed requests are expected
}

// patience bounds every wait for a page.
const patience = 20 * time.Second

// newTab opens a tab of the same browser: an earlier sign-in stays valid.
func newTab(t *testing.T) *tab {
	t.Helper()
	tb := &tab{t: t, host: stage.console, kept: make(chan fetch.RequestID, 8)}
	ctx, cancel := chromedp.NewContext(stage.browser, chromedp.WithListener(tb.see))
	tb.ctx = ctx
	t.Cleanup(func() {
		cancel()
		tb.mu.Lock()
		defer tb.mu.Unlock()
		for _, what := range tb.wrong {
			t.Error(what)
		}
	})
	const watchPolicy = `document.addEventListener('securitypolicyviolation', function (e) {
		console.error('policy: ' + e.violatedDirective + ' forbids ' + (e.blockedURI || 'inline') + ' at ' + e.sourceFile + ':' + e.lineNumber + ' ' + e.sample);
	});`
	if err := chromedp.Do(ctx); err != nil { // the tab lives as long as this context
		t.Fatal(err)
	}
	call(tb, network.Enable, network.EnableParams{})
	call(tb, log.Enable, cdp.Empty{})
	call(tb, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watchPolicy})
	return tb
}

// see notes errors of the page.
func (tb *tab) see(event any) {
	note := func(format string, args ...any) {
		tb.mu.Lock()
		defer tb.mu.Unlock()
		tb.wrong = append(tb.wrong, fmt.Sprintf(format, args...))
	}
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		said := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			said += " " + e.ExceptionDetails.Exception.Description
		}
		note("a script failed: %s", said)
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "warning" {
			var said []string
			for _, arg := range e.Args {
				said = append(said, string(arg.Value)+arg.Description)
			}
			note("the console of the browser says: %s", strings.Join(said, " "))
		}
	case *log.EventEntryAdded:
		tb.mu.Lock()
		away := tb.expects
		tb.mu.Unlock()
		if e.Entry.Level == "error" && !(away && e.Entry.Source == "network") {
			note("the browser says: %s (%s)", e.Entry.Text, e.Entry.URL)
		}
	case *fetch.EventRequestPaused:
		tb.kept <- e.RequestID
	case *network.EventRequestWillBeSent:
		if at, err := url.Parse(e.Request.URL); err != nil || at.Scheme != "data" && at.Scheme != "blob" && at.Host != tb.host {
			note("a request went to %s", e.Request.URL)
		}
	}
}

// call sends a command of the browser's protocol.
func call[P, R any](tb *tab, command cdp.Command[P, R], params P) {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	if _, err := chromedp.Call(ctx, command, params); err != nil {
		tb.t.Fatal(err)
	}
}

// keep pauses requests to addresses of a pattern.
func (tb *tab) keep(pattern string) {
	tb.t.Helper()
	call(tb, fetch.Enable, fetch.EnableParams{Patterns: []*fetch.RequestPattern{{URLPattern: pattern}}})
}

// next is the next paused request. The caller continues, answers or fails it.
func (tb *tab) next() fetch.RequestID {
	tb.t.Helper()
	select {
	case id := <-tb.kept:
		return id
	case <-time.After(patience):
		tb.t.Fatalf("no request was paused\n%s", tb.text())
		return ""
	}
}

// evaluate is the result of a script, once its promise is resolved.
func evaluate[T any](tb *tab, script string) (T, error) {
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
}

func (tb *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		tb.t.Fatalf("%v\nthe page is %s", err, tb.text())
	}
}

// open goes to a page and waits for its heading.
func (tb *tab) open(path string) {
	tb.t.Helper()
	tb.do(chromedp.Navigate("http://"+tb.host+path), chromedp.WaitVisible(chromedp.CSS("h1")))
}

// text is the visible text of the page.
func (tb *tab) text() string {
	text, err := evaluate[string](tb, `document.title + '\n' + (document.body ? document.body.innerText : '')`)
	if err != nil {
		return "not to be read: " + err.Error()
	}
	return text
}

// shows waits until the page shows all of the texts.
func (tb *tab) shows(texts ...string) {
	tb.t.Helper()
	eventually(tb.t, patience, func() error {
		page := tb.text()
		for _, text := range texts {
			if !strings.Contains(page, text) {
				return fmt.Errorf("the page does not show %q:\n%s", text, page)
			}
		}
		return nil
	})
}

// is waits until a script is true.
func (tb *tab) is(what, script string) {
	tb.t.Helper()
	eventually(tb.t, patience, func() error {
		if yes, err := evaluate[bool](tb, script); err != nil || !yes {
			return fmt.Errorf("not true: %s (%v)\n%s", what, err, tb.text())
		}
		return nil
	})
}

// screen sets the preferred color scheme and the width of the screen.
func (tb *tab) screen(scheme string, width, height int64) {
	tb.t.Helper()
	call(tb, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}})
	tb.do(chromedp.EmulateViewport(width, height))
}

// picture writes a screenshot to the folder SCREENSHOTS, if set.
func (tb *tab) picture(name string) {
	tb.t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	fatal.If(tb.t, err)
	fatal.If(tb.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}

// accessible checks the page with axe-core, in both color schemes and at the width of a
// phone, where only tables may be wider than the screen; and that each of its numbers
// links to its list.
func (tb *tab) accessible() {
	tb.t.Helper()
	path, err := evaluate[string](tb, `location.pathname + location.search`)
	fatal.If(tb.t, err)
	tb.linked(path)
	for _, screen := range []struct {
		scheme        string
		width, height int64
	}{{"light", 1280, 800}, {"dark", 390, 844}} {
		tb.screen(screen.scheme, screen.width, screen.height)
		tb.audit(fmt.Sprintf("%s, %d wide", screen.scheme, screen.width))
		if screen.width < 800 {
			tb.is("the page fits a phone", `document.documentElement.scrollWidth <= innerWidth + 1`)
		}
	}
	tb.screen("light", 1280, 800)
}

func (tb *tab) audit(how string) {
	tb.t.Helper()
	source, err := os.ReadFile("../../../.cache/browser/node_modules/axe-core/axe.min.js")
	if err != nil {
		tb.t.Fatalf("%v: make browser fetches it", err)
	}
	if _, err := evaluate[int](tb, string(source)+"; 0"); err != nil {
		tb.t.Fatal(err)
	}
	found, err := evaluate[string](tb, `axe.run(document, {resultTypes: ['violations']}).then(r => JSON.stringify(r.violations.map(v =>
		({id: v.id, help: v.help, at: v.nodes.map(n => n.html.slice(0, 200) + ' ' + n.failureSummary)}))))`)
	fatal.If(tb.t, err)
	var violations []struct {
		ID, Help string
		At       []string
	}
	fatal.If(tb.t, json.Unmarshal([]byte(found), &violations))
	for _, v := range violations {
		tb.t.Errorf("%s: axe-core: %s (%s) at\n  %s", how, v.Help, v.ID, strings.Join(v.At, "\n  "))
	}
}
