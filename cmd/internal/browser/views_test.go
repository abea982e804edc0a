package browser

import (
	"fmt"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"sluice/pkg/fatal"
)

// simulated posts a simulated engine's records of the last day, once for all tests, and waits
// until they are queryable.
func simulated(t *testing.T) {
	t.Helper()
	if stage.simulated {
		return
	}
	stage.simulated = true
	if _, err := stage.Sluice(t.Context(), "load", "--simulated", "--seed", "7", "--records", "20000", "--wait", "--url", stage.URL, "--token", stage.Token); err != nil {
		t.Fatal(err)
	}
}

// drawn waits until the diagram is drawn.
func (tb *tab) drawn() {
	tb.t.Helper()
	tb.is("the diagram is drawn", `document.querySelector('.diagram').dataset.drawn === 'yes' && document.querySelectorAll('.diagram .djs-shape').length > 5`)
}

// heated waits until executions and times are loaded, after the page.
func (tb *tab) heated() {
	tb.t.Helper()
	tb.is("the elements are there", `(p => p.getAttribute('aria-busy') === 'false' && p.querySelectorAll('tbody tr').length > 0)(document.querySelector('.later'))`)
}

// TestAnIncidentIsSeenAndFound: the list of processes counts incidents, the diagram shows their
// elements, the instance their messages; a search for the message finds them.
func TestAnIncidentIsSeenAndFound(t *testing.T) {
	simulated(t)
	tb := signedIn(t)
	tb.open("/processes")
	tb.shows("order", "claim", "survey", "shipment")
	tb.accessible()
	tb.do(chromedp.Click(chromedp.CSS(`a[href^="/process?id=order&"]`)), chromedp.WaitVisible(chromedp.CSS("#diagram")))
	tb.drawn()
	tb.heated()
	tb.is("it is coloured", `document.querySelectorAll('.diagram [class*=heat-]').length > 3`)
	tb.is("badges have the numbers", `document.querySelectorAll('.diagram .badge.tokens').length > 0 && document.querySelectorAll('.diagram .badge.open').length > 0`)
	tb.is("elements have their names, and their ids in the tooltip", `[...document.querySelectorAll(".later th, .way span")].filter(e => e.textContent === "Back order" && e.title === "back_order").length > 1`)
	tb.is("most is not hottest by every measure", `(function () {
		const hot = () => [...document.querySelectorAll('.diagram [class*=heat-]')].map(g => g.dataset.elementId + g.getAttribute('class').match(/heat-./)[0]).join();
		const before = hot();
		const mode = document.querySelector('#mode'), choose = by => { mode.value = by; mode.dispatchEvent(new Event('change')); };
		choose('time');
		const after = hot();
		choose('count');
		return before !== after && hot() === before;
	})()`)
	tb.shows("Versions", "Duration", "Slowest elements", "Variants")
	tb.picture("process")
	tb.accessible()

	tb.do(chromedp.Navigate("http://"+stage.console+"/instances?incident=open&any=1&source=local&id=order"), chromedp.WaitVisible(chromedp.CSS("tbody th a")))
	tb.accessible()
	key, err := evaluate[string](tb, `document.querySelector('tbody th a').textContent`)
	fatal.If(t, err)
	tb.do(chromedp.Click(chromedp.CSS("tbody th a")), chromedp.WaitVisible(chromedp.CSS("#timeline")))
	tb.shows("INCIDENT", "OPEN", key)
	tb.drawn()
	tb.is("the element of the incident is marked", `!!document.querySelector('.diagram .at-stuck') && !!document.querySelector('.diagram .at-done.djs-connection')`)
	tb.is("the timeline shows it", `[...document.querySelectorAll("svg.gantt text.name")].some(e => e.firstChild.textContent === "Order placed") && !!document.querySelector('svg.gantt rect.incident')`)
	tb.picture("instance")
	tb.accessible()

	said, err := evaluate[string](tb, `document.querySelector('#incidents ~ .wide tbody td.why').textContent`)
	if err != nil || len(said) < 10 {
		t.Fatalf("the incident says %q (%v)", said, err)
	}
	tb.open("/instances?source=local&id=order&incident=open")
	tb.do(chromedp.SendKeys(chromedp.CSS("#q"), said[:min(len(said), 40)]+kb.Enter))
	tb.is("the search was sent", `new URLSearchParams(location.search).has("q") && document.readyState === "complete"`)
	tb.shows(key)
	tb.do(chromedp.Navigate("http://"+stage.console+"/instances?q="+key), chromedp.WaitVisible(chromedp.CSS("tbody th a")))
	tb.shows("instance key")
}

// TestWhatHappenedComesAfterItsPage: the page of a process loads executions and times last. It
// shows their state and errors; a retry loads them without moving the page.
func TestWhatHappenedComesAfterItsPage(t *testing.T) {
	simulated(t)
	tb := signedIn(t)
	tb.expects = true // requests fail, which is no error of the page
	tb.keep("*/process/elements?*")
	tb.open("/process?source=local&id=order&window=7d")
	asked := tb.next()
	tb.drawn()
	tb.shows("Loading elements…", "Loading executions and time…", "Versions", "Variants", "Active elements")
	tb.is("active instances and open incidents are on the diagram", `document.querySelectorAll('.diagram .badge.tokens').length > 0 && document.querySelectorAll('.diagram .badge.open').length > 0`)
	tb.is("executions are not, and are loading", `!document.querySelector('.diagram .badge.count') && document.querySelector('.later').getAttribute('aria-busy') === 'true'`)
	tb.accessible()
	places := func() string {
		t.Helper()
		at, err := evaluate[string](tb, `[...document.querySelectorAll('main h2, main figure, main table, main ol')].slice(0, 10).map(e => e.tagName + Math.round(e.getBoundingClientRect().top + scrollY)).join()`)
		fatal.If(t, err)
		return at
	}
	before := places()
	stays := func(when string) {
		t.Helper()
		if now := places(); now != before {
			t.Errorf("%s things are at %s, before they were at %s", when, now, before)
		}
	}

	call(tb, fetch.FailRequest, fetch.FailRequestParams{RequestID: asked, ErrorReason: network.ErrorReasonConnectionReset})
	tb.shows("Not available: the console cannot be reached.", "Elements not loaded.", "Executions and time are not available.")
	stays("after an error")
	tb.accessible()
	again := func() fetch.RequestID {
		t.Helper()
		tb.do(chromedp.Focus(chromedp.CSS("[data-again]")), chromedp.KeyEvent(kb.Enter))
		return tb.next()
	}
	call(tb, fetch.FulfillRequest, fetch.FulfillRequestParams{RequestID: again(), ResponseCode: 503, Body: []byte("too busy")})
	tb.shows("Not available: the console answers 503")
	call(tb, fetch.ContinueRequest, fetch.ContinueRequestParams{RequestID: again()})
	tb.heated()
	stays("when it is there")
	tb.shows("Elements loaded.")
	tb.is("it is on the diagram too", `document.querySelectorAll('.diagram .badge.count').length > 3 && document.querySelectorAll('.diagram [class*=heat-]').length > 3 && !document.querySelector('#heat').textContent`)
	tb.is("no badge is duplicated", `new Set([...document.querySelectorAll('.diagram .badge')].map(b => b.href)).size === document.querySelectorAll('.diagram .badge').length`)
	tb.is("the focus stays", `document.activeElement === document.querySelector('.later')`)
	tb.accessible()

	// Without the script a link leads to them.
	call(tb, fetch.Disable, cdp.Empty{})
	tb.open("/process/elements?source=local&id=order&window=7d")
	tb.is("the table has its own page", `document.querySelectorAll('.later tbody tr').length > 5 && !document.querySelector('[data-again]')`)
	tb.accessible()

	// Without a session the later part asks for a sign-in, which leads back.
	tb.keep("*/process/elements?*")
	tb.open("/process?source=local&id=order&window=7d")
	call(tb, fetch.FailRequest, fetch.FailRequestParams{RequestID: tb.next(), ErrorReason: network.ErrorReasonConnectionReset})
	tb.shows("Try again")
	call(tb, network.ClearBrowserCookies, cdp.Empty{})
	call(tb, fetch.ContinueRequest, fetch.ContinueRequestParams{RequestID: again()})
	tb.shows("Access token")
	tb.is("the sign-in leads back to the page", `document.querySelector('[name=next]').value === '/process?source=local&id=order&window=7d'`)
}

// TestAStatementIsAsked: Ctrl+Enter runs a question, whose result is charted; the address and a
// saved name keep it; names complete; a statement that writes is rejected.
func TestAStatementIsAsked(t *testing.T) {
	simulated(t)
	tb := signedIn(t)
	const run = `form#ask button[type=submit]`
	tb.open("/query?question=throughput")
	tb.is("it has not been run, and views are known", `!document.querySelector('#answer') && document.querySelector('#names').dataset.ready === 'yes'`)
	tb.is("columns have descriptions", `(document.querySelector('#names').open = true) && document.querySelectorAll('#views summary').length > 10 && document.querySelector('#views dd').textContent.length > 5`)
	tb.accessible()
	tb.do(chromedp.Focus(chromedp.CSS("#sql")), chromedp.KeyEvent(kb.Enter, chromedp.KeyModifiers(chromedp.ModifierCtrl)), chromedp.WaitVisible(chromedp.CSS("#answer")))
	tb.is("its charts are drawn", `document.querySelectorAll('.plot canvas').length === 3 && document.querySelectorAll('tbody tr').length > 10`)
	tb.is("the result is in view", `document.querySelector('#answer').getBoundingClientRect().top < innerHeight`)
	tb.picture("query")
	tb.accessible()
	tb.is("the address keeps it, in UTC", `(p => p.get('question') === 'throughput' && p.get('param_from').endsWith('Z'))(new URLSearchParams(location.search))`)

	tb.do(chromedp.Click(chromedp.CSS("#saved summary")), chromedp.SendKeys(chromedp.CSS("#saved input"), "<b>by hour"+kb.Enter))
	tb.open("/query")
	tb.do(chromedp.Click(chromedp.CSS("#saved li a")), chromedp.WaitVisible(chromedp.CSS("#p-from")))
	tb.is("a saved query loads, with current times", `document.querySelector('#sql').value.includes('started') && new Date(document.querySelector('#p-to').value) > new Date() && document.querySelector('#saved a').textContent === '<b>by hour'`)
	tb.do(chromedp.Click(chromedp.CSS("#saved .drop")))
	tb.open("/query")
	tb.is("and is removed", `!document.querySelector('#saved li')`)
	tb.is("names are known", `document.querySelector('#names').dataset.ready === 'yes'`)
	tb.do(chromedp.SendKeys(chromedp.CSS("#sql"), "SELECT count() AS many FROM v_user_t\t"), chromedp.Click(chromedp.CSS(run)), chromedp.WaitVisible(chromedp.CSS("#answer")))
	tb.is("a name is completed", `document.querySelector('#sql').value.endsWith('FROM v_user_tasks') && /^[1-9]/.test(document.querySelector('.answer td').textContent)`)

	for statement, answer := range map[string]string{
		"SELECT currentUser() AS who":                         "console",
		"SELECT '<img src=x onerror=alert(1)>' AS harm":       "<img src=x onerror=alert(1)>",
		"INSERT INTO flow.changes SELECT * FROM flow.changes": "Queries are read-only",
	} {
		tb.open("/query")
		tb.do(chromedp.SetValue(chromedp.CSS("#sql"), statement), chromedp.Click(chromedp.CSS(run)))
		tb.is(statement, fmt.Sprintf(`(said => !!said && said.innerText.includes(%s))(document.querySelector('main table, main [role=alert]'))`, quoted(answer)))
	}
}

// TestRecordsAreFollowed: records appear as they are stored, until the user pauses.
func TestRecordsAreFollowed(t *testing.T) {
	load(t, "--records", "1000000", "--rate", "2000", "--batch", "100", "--connections", "2")
	tb := signedIn(t)
	tb.open("/records?type=JOB")
	tb.is("jobs appear", `document.querySelectorAll('#tail tbody tr').length > 20 && [...document.querySelectorAll('#tail tbody tr')].every(r => r.cells[1].textContent.startsWith('JOB'))`)
	tb.accessible()
	tb.do(chromedp.Click(chromedp.CSS("#pause")))
	tb.shows("Paused")
	tb.is("nothing changes while paused", `new Promise(done => {
		const rows = document.querySelectorAll('#tail tbody tr').length, first = document.querySelector('#tail tbody').innerText;
		setTimeout(() => done(rows > 0 && first === document.querySelector('#tail tbody').innerText), 2500);
	})`)
}
