package browser

import (
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"sluice/pkg/fatal"
)

// Digits that are no numbers of something. Everything else with a digit in it is a
// time, a name or a key of a record (.id, .name, .text, .why, .way, code), a value
// of the answer or the source that stands on the same page, or leads to what makes it.
var worded = []string{
	"p50", "p95", // percentiles
	"last 24 hours", "last 7 days", "last 30 days", // what can be chosen
	"last 2,000 instances", "at most 100", "than 20,000", // bounds of a page
	"At most 50 a second, and the last 200",
	"Begun over 24", // sections of the day
}

// unlinked says which numbers of the page lead nowhere, and which times are none.
const unlinked = `(worded => {
	const wrong = [];
	const ids = new Set();
	const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n; n = texts.nextNode();) {
		const at = n.parentElement, text = n.textContent.trim();
		if (!/\d/.test(text) || at.closest('script, style, title, noscript, textarea, option, [hidden]')) continue;
		if (at.closest('time')) {
			const t = at.closest('time');
			if (!/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3,}Z$/.test(t.title) || t.title !== t.dateTime) wrong.push('no exact time in the tooltip: ' + t.outerHTML);
			else if (t.textContent.includes('UTC')) wrong.push('not in the zone of the viewer: ' + t.outerHTML);
			continue;
		}
		if (/\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d/.test(text) && !at.closest('.why, .text, .id, .name, code, pre, table.answer')) { wrong.push('a time that is no <time>: ' + text); continue; }
		const fig = at.closest('a.fig');
		if (fig) {
			const to = new URL(fig.getAttribute('href') || fig.getAttribute('xlink:href'), location.href);
			const here = to.pathname === location.pathname && to.hash && document.getElementById(to.hash.slice(1));
			if (to.pathname !== '/query' && !here && !/^\/dead(\/\d+\/bytes)?$/.test(to.pathname)) wrong.push('leads to ' + to + ': ' + fig.outerHTML);
			continue;
		}
		if (at.closest('.id, .name, .text, .why, .way, .djs-visual, code, pre, table.answer td, .source td, .source th, .axis, .u-legend')) continue;
		if (worded.reduce((text, w) => text.replaceAll(w, ''), text).match(/\d/)) wrong.push('a number that leads nowhere: ' + text + ' in ' + at.outerHTML.slice(0, 300));
	}
	return wrong;
})`

// linked checks that every number of the page leads to what makes it.
func (tb *tab) linked(page string) {
	tb.t.Helper()
	known, _ := json.Marshal(worded) // never fails of strings
	wrong, err := evaluate[[]string](tb, unlinked+"("+string(known)+")")
	fatal.If(tb.t, err)
	for _, what := range wrong {
		tb.t.Errorf("%s: %s", page, what)
	}
}

// number is one on a page.
type number struct{ Href, Text, Title string }

// value is the number exactly: the tooltip has what the text rounds.
func (n number) value() float64 {
	text := n.Text
	if strings.HasSuffix(n.Title, " ms") {
		text = n.Title
	}
	v, err := strconv.ParseFloat(strings.ReplaceAll(strings.Fields(text)[0], ",", ""), 64)
	if err != nil {
		return math.NaN()
	}
	return v
}

// follow follows a number to its query, as a person does who presses Run there, and
// says what the answer is.
const follow = `(async href => {
	const parse = async res => new DOMParser().parseFromString(await res.text(), 'text/html');
	const page = await parse(await fetch(href, { headers: { Accept: 'text/html' } }));
	if (!page.querySelector('#sql')) return page.querySelector('main').innerText;
	const form = new URLSearchParams({ csrf: page.querySelector('form[action="/query"] [name=csrf]').value, sql: page.querySelector('#sql').value });
	const said = await parse(await fetch('/query', { method: 'POST', body: form, headers: { Accept: 'text/html' } }));
	const cells = said.querySelectorAll('table.answer td');
	return cells.length === 1 ? cells[0].textContent : said.querySelector('main').innerText;
})`

// TestEveryNumberLeadsToWhatMakesIt walks all pages: no number is there that leads
// nowhere, and those of queries are what their queries say.
func TestEveryNumberLeadsToWhatMakesIt(t *testing.T) {
	simulated(t)
	tb := signedIn(t)
	tb.open("/instances?state=INCIDENT&source=local&id=order")
	stuck, err := evaluate[string](tb, `document.querySelector('tbody a.id').getAttribute('href')`)
	fatal.If(t, err)
	tb.open(stuck)
	record, err := evaluate[string](tb, `document.querySelector('a[href^="/record?"]').getAttribute('href')`)
	fatal.If(t, err)
	kinds := map[string]bool{}
	for _, path := range []string{
		"/", "/processes?window=7d", "/process?source=local&id=order&window=7d", "/process?source=local&id=claim&window=7d", "/process/elements?source=local&id=order&window=7d", "/instances?window=7d", stuck, record,
		"/records", "/query?question=throughput", "/dead", "/sources",
	} {
		tb.open(path)
		if _, err := evaluate[int](tb, `document.querySelectorAll('details').forEach(d => { d.open = true; }), 0`); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(path, "/process?") || path == stuck {
			tb.drawn()
		}
		if strings.HasPrefix(path, "/process?") {
			tb.heated()
		}
		tb.linked(path)
		found, err := evaluate[[]number](tb, `[...document.querySelectorAll('a.fig')].map(a => ({Href: a.getAttribute('href'), Text: a.textContent, Title: a.title || ''}))`)
		fatal.If(t, err)
		if len(found) == 0 && path != "/records" && path != record && path != "/query?question=throughput" && path != "/dead" {
			t.Errorf("%s has no number", path)
		}
		for _, n := range found {
			u, err := url.Parse(n.Href)
			fatal.If(t, err)
			kind := u.Query().Get("get")
			if u.Path != "/query" || kind == "" || kinds[kind] {
				continue // one of each kind is run: the statement of the others differs in its row
			}
			kinds[kind] = true
			said, err := evaluate[string](tb, follow+"("+quoted(n.Href)+")")
			got, wrong := strconv.ParseFloat(said, 64)
			if err != nil || wrong != nil || math.Abs(got-n.value()) > .001 {
				t.Errorf("%s: %q (%s) leads to %s, which says %s (%v)", path, n.Text, n.Title, n.Href, said, err)
			}
		}
	}
	if len(kinds) < 25 {
		t.Errorf("only %d kinds of numbers were found: %v", len(kinds), kinds)
	}
	tb.totals()
}

// totals compares the figures of the first page with the tables that make them, when
// nothing moves.
func (tb *tab) totals() {
	tb.t.Helper()
	tb.open("/")
	eventually(tb.t, patience, func() error {
		wrong, err := evaluate[[]string](tb, `(() => {
			const of = text => parseInt(text.replace(/,/g, '')) || 0;
			const sum = (table, name) => {
				const i = [...table.tHead.rows[0].cells].findIndex(c => c.textContent === name);
				return [...table.tBodies[0].rows].reduce((sum, row) => sum + of(row.cells[i].textContent), 0);
			};
			const lanes = document.querySelector('#lanes ~ .wide table'), accepted = [...document.querySelectorAll('#servers ~ .wide td')].filter(td => / accepted$/.test(td.textContent));
			const want = {
				Accepted: accepted.reduce((sum, td) => sum + of(td.textContent), 0),
				Stored: sum(lanes, 'Stored'), Deduplicated: sum(lanes, 'Deduplicated'), Backlog: sum(lanes, 'Backlog'),
			};
			return [...document.querySelectorAll('.cards > div')].flatMap(card => {
				const name = card.querySelector('dt').textContent, rate = card.querySelector('small');
				if (name === 'Dead-lettered') return []; // also of no lane: its link leads to all of them
				const shown = of((rate ? card.querySelector('.sum a') : card.querySelector('dd a')).textContent);
				return shown === want[name] ? [] : [name + ' is ' + shown + ', and ' + want[name] + ' where it comes from'];
			});
		})()`)
		if err == nil && len(wrong) > 0 {
			err = fmt.Errorf("%s", strings.Join(wrong, "\n"))
		}
		return err
	})
}
