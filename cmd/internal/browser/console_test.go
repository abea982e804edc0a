package browser

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"sluice/pkg/fatal"
)

// TestSignIn: the link signs in once, a token signs in, a wrong one does not, and
// signing out ends it.
func TestSignIn(t *testing.T) {
	tb := newTab(t)
	tb.do(chromedp.Navigate(stage.link))
	tb.shows("Needs attention")
	tb.is("the secret left the address", `location.hash === '' && location.pathname === '/'`)
	tb.is("no script can read the cookie", `document.cookie === ''`)
	tb.do(chromedp.Click(chromedp.CSS(`form.who button`)))
	tb.shows("Access token")

	tb.do(chromedp.Navigate("about:blank"), chromedp.Navigate(stage.link))
	tb.shows("The link was used before")
	tb.open("/dead")
	tb.shows("Access token")
	tb.accessible()
	tb.picture("sign-in")
	tb.do(chromedp.SendKeys(chromedp.CSS("#token"), "wrong"+kb.Enter))
	tb.shows("The token is invalid")
	tb.do(chromedp.SendKeys(chromedp.CSS("#token"), stage.Token+kb.Enter))
	tb.shows("Dead letters", "Sign out")
	tb.is("the sign-in leads to the requested page", `location.pathname === '/dead'`)
	tb.allow403()
}

// signedIn is a tab of a user who has signed in with the token.
func signedIn(t *testing.T) *tab {
	t.Helper()
	tb := newTab(t)
	tb.open("/sign-in")
	tb.do(chromedp.SendKeys(chromedp.CSS("#token"), stage.Token+kb.Enter))
	tb.shows("Sign out")
	return tb
}

// allow403 drops Chromium's errors about expected 403 answers.
func (tb *tab) allow403() {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	var rest []string
	for _, what := range tb.wrong {
		if !strings.Contains(what, "status of 403") {
			rest = append(rest, what)
		}
	}
	tb.wrong = rest
}

// TestNowIsLiveUnderLoad: numbers refresh, the focus stays, and the keyboard reaches
// everything.
func TestNowIsLiveUnderLoad(t *testing.T) {
	load(t, "--records", "1000000", "--rate", "3000", "--batch", "100", "--connections", "4")
	tb := signedIn(t)
	tb.open("/")
	tb.shows("As of")
	const figure = `[...document.querySelectorAll('.cards > div')].find(card => card.querySelector('dt').textContent === %s).querySelector(%s).textContent`
	for _, name := range []string{"Accepted", "Stored"} {
		tb.is(name+" has a rate", "parseInt("+fmt.Sprintf(figure, quoted(name), quoted("dd"))+".replace(/,/g, '')) > 500")
	}
	total := fmt.Sprintf(figure, quoted("Stored"), quoted(".sum a"))
	before, err := evaluate[string](tb, `document.querySelector('.cards a').focus(), `+total)
	fatal.If(t, err)
	tb.is("the total changes, and the focus stays", total+" !== "+quoted(before)+` && document.activeElement === document.querySelector('.cards a')`)
	tb.accessible()
	tb.picture("now")
	// The first Tab reaches the link that skips the menu, the second the menu.
	tb.open("/")
	tb.do(chromedp.KeyEvent(kb.Tab))
	tb.is("the skip link comes first", `document.activeElement.className === 'skip' && document.activeElement.getBoundingClientRect().left >= 0`)
	tb.do(chromedp.KeyEvent(kb.Enter))
	tb.is("it leads to the content", `document.activeElement.id === 'main'`)
}

// TestAListRefreshes: on request a list refreshes automatically, and open details stay open.
func TestAListRefreshes(t *testing.T) {
	load(t, "--records", "1000000", "--rate", "1000", "--batch", "100", "--connections", "2")
	tb := signedIn(t)
	tb.open("/jobs?window=1h")
	tb.do(chromedp.Click(chromedp.CSS("#live .pulse a")), chromedp.WaitVisible(chromedp.CSS("#pulse")), chromedp.Click(chromedp.CSS("#live summary")))
	const count = `document.querySelector('.sum data').value`
	before, err := evaluate[string](tb, count)
	fatal.If(t, err)
	tb.is("the count changes, and the groups stay open", count+" !== "+quoted(before)+` && document.querySelector('#live details').open`)
	tb.is("the address keeps it", `new URLSearchParams(location.search).get('refresh') === '1'`)
	tb.accessible()
	tb.do(chromedp.Click(chromedp.CSS("#live .pulse a")))
	tb.is("the refresh can be disabled", `!document.getElementById('pulse') && document.querySelector('#live').dataset.every === undefined`)
}

// TestEveryPageUnderLoad opens each page of the menu while records come in.
func TestEveryPageUnderLoad(t *testing.T) {
	load(t, "--records", "1000000", "--rate", "3000", "--batch", "100", "--connections", "4")
	tb := signedIn(t)
	tb.open("/")
	pages, err := evaluate[[]string](tb, `[...document.querySelectorAll('header nav a')].map(a => a.getAttribute('href'))`)
	if err != nil || len(pages) < 3 {
		t.Fatalf("the menu has %q (%v)", pages, err)
	}
	for _, path := range pages {
		tb.open(path)
		tb.is(path+" shows something", `document.querySelector('main').innerText.length > 40 && !document.querySelector('main [role=alert]')`)
		tb.accessible()
	}
}

// TestADeadLetterIsReplayed: ClickHouse rejects a record; its letter is viewed, replayed after
// the fix, and stored.
func TestADeadLetterIsReplayed(t *testing.T) {
	query(t, "ALTER TABLE flow.records ADD CONSTRAINT not_poison CHECK error_message != 'poison'")
	post(t, fmt.Sprintf(`[{"id":"browser-1","recordType":"EVENT","valueType":"JOB","intent":"FAILED","timestamp":%d,"value":{"bpmnProcessId":"order","errorMessage":"poison"}}]`, time.Now().UnixMilli()))
	tb := signedIn(t)
	tb.open("/")
	tb.shows("1 dead letter to replay or drop")
	tb.open("/dead")
	tb.shows("refused", "VIOLATED_CONSTRAINT")
	tb.picture("dead-letters")
	tb.accessible()
	tb.do(chromedp.Click(chromedp.CSS(`th[scope=row] a[href^="/dead/"]`)), chromedp.WaitVisible(chromedp.CSS("pre")))
	tb.shows("Dead letter 1", "the record as a whole", `"errorMessage": "poison"`)
	tb.accessible()
	tb.picture("dead-letter")
	query(t, "ALTER TABLE flow.records DROP CONSTRAINT not_poison")
	tb.do(chromedp.Click(chromedp.CSS(`button[value=replay]`)))
	tb.shows("1 letter would be replayed", "Nothing has been done yet")
	if n := query(t, "SELECT count() FROM flow.records WHERE id = 'browser-1'"); n != "0" {
		t.Errorf("the dry run has stored %s records", n)
	}
	tb.accessible()
	tb.do(chromedp.Click(chromedp.CSS(`form.confirm button`)))
	tb.shows("1 replayed")
	eventually(t, patience, func() error {
		if n := query(t, "SELECT count() FROM flow.records WHERE id = 'browser-1'"); n != "1" {
			return fmt.Errorf("%s records are stored, want 1", n)
		}
		return nil
	})
	tb.open("/dead")
	tb.shows("Replayed and dropped", "replayed", "local")
}

// TestTheEngineRestartsWhileThePageIsOpen: the open page reports the outage and the recovery.
func TestTheEngineRestartsWhileThePageIsOpen(t *testing.T) {
	tb := signedIn(t)
	tb.open("/")
	tb.shows("As of", "answers")
	if err := stage.SignalEngine(syscall.SIGSTOP); err != nil { // long enough to be seen
		t.Fatal(err)
	}
	tb.shows("ClickHouse does not answer")
	tb.picture("clickhouse-away")
	tb.accessible()
	fatal.If(t, stage.SignalEngine(syscall.SIGKILL))
	eventually(t, patience, func() error {
		if page := tb.text(); strings.Contains(page, "ClickHouse does not answer") || !strings.Contains(page, "is ready") {
			return fmt.Errorf("the page does not show the recovery:\n%s", page)
		}
		return nil
	})
}
