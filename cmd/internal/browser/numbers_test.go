package browser

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"sluice/pkg/fatal"
)

// Texts with digits that count nothing. Every other digit is part of a time, a name, a key or
// a value (.id, .name, .text, .why, .way, code), of an answer, of the first line of a list, or
// of a link to the counted rows.
var worded = []string{
	"p50", "p95", // percentiles
	"last 24 hours", "last 7 days", "last 30 days", // choices
	"last 2,000", "at most 100", "than 20,000", // bounds of a page
	"At most 50 per second; the last 200",
}

// unlinked lists numbers without a link, numbers whose text differs from their value, and times
// without a zone.
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
			if (fig.dataset.is === 'count' && !fig.matches('.delta') && text.replace(/\D/g, '') !== fig.dataset.value) wrong.push('shows another number than it links to: ' + fig.outerHTML);
			if (!fig.dataset.is && to.pathname !== '/query' && !here && !/^\/(dead(\/\d+\/bytes)?|sources)$/.test(to.pathname)) wrong.push('leads to ' + to + ': ' + fig.outerHTML);
			continue;
		}
		if (at.closest('.id, .name, .text, .why, .way, .sum data, [data-zone], label, .djs-visual, code, pre, table.answer td, .source td, .source th, .axis, .u-legend')) continue;
		if (worded.reduce((text, w) => text.replaceAll(w, ''), text).match(/\d/)) wrong.push('a number that leads nowhere: ' + text + ' in ' + at.outerHTML.slice(0, 300));
	}
	return wrong;
})`

// linked checks that every number of the page links to its rows.
func (tb *tab) linked(page string) {
	tb.t.Helper()
	known, _ := json.Marshal(worded) // cannot fail
	wrong, err := evaluate[[]string](tb, unlinked+"("+string(known)+")")
	fatal.If(tb.t, err)
	for _, what := range wrong {
		tb.t.Errorf("%s: %s", page, what)
	}
}

// number is a number on a page, with its link.
type number struct{ Is, Value, Href string }

// count is the value in the first line of a list.
const count = `(async (href, is) => {
	const page = new DOMParser().parseFromString(await (await fetch(href, { headers: { Accept: 'text/html' } })).text(), 'text/html');
	const sum = page.querySelector('.sum data[data-is=' + is + ']');
	return sum ? sum.getAttribute('value') : page.querySelector('main').innerText.slice(0, 500);
})`

// real posts the records of a Camunda 8.6.0 broker, under their own source, once.
func real(t *testing.T) {
	t.Helper()
	if query(t, "SELECT count() FROM flow.sources WHERE source = 'broker'") != "0" {
		return
	}
	said, err := stage.Sluice(t.Context(), "source", "add", "broker")
	fatal.If(t, err)
	file, err := os.Open("../../../pkg/warehouse/testdata/camunda-8.6.0.ndjson.gz")
	fatal.If(t, err)
	defer file.Close()
	packed, err := gzip.NewReader(file)
	fatal.If(t, err)
	body, err := io.ReadAll(packed)
	fatal.If(t, err)
	token := strings.Split(said, "\n")[1]
	fatal.If(t, postAs(token, string(body), http.StatusOK))
}

// TestEveryNumberLeadsToWhatItCounts walks all pages, of a simulated engine and of a real
// broker: every number has a link, and the linked page has the same value.
func TestEveryNumberLeadsToWhatItCounts(t *testing.T) {
	simulated(t)
	real(t)
	tb := signedIn(t)
	tb.open("/instances?incident=open&any=1&source=local&id=order")
	stuck, err := evaluate[string](tb, `document.querySelector('tbody th a').getAttribute('href')`)
	fatal.If(t, err)
	tb.open(stuck)
	record, err := evaluate[string](tb, `document.querySelector('a[href^="/record?"]').getAttribute('href')`)
	fatal.If(t, err)
	process := query(t, "SELECT bpmn_process_id FROM flow.v_process_instances WHERE source = 'broker' GROUP BY 1 ORDER BY count() DESC LIMIT 1")
	span := "&from=2020-01-01T00:00:00Z&to=" + time.Now().UTC().Format(time.RFC3339)
	since, lists := time.Now(), map[string]string{} // the value of each list
	for _, path := range []string{
		"/processes?x=1" + span, "/process?source=local&id=order" + span, "/process/elements?source=local&id=order" + span, "/process?source=broker&id=" + process + span,
		"/instances?source=broker" + span, "/incidents?window=all", "/jobs?source=broker" + span, "/tasks?window=all", "/timers?source=broker" + span, "/messages?source=broker" + span, "/decisions?source=local&window=all",
		stuck, record, "/records", "/query?question=throughput", "/dead", "/sources", "/",
	} {
		tb.open(path)
		if path == "/" { // open work is counted once a minute
			eventually(t, 2*time.Minute, func() error {
				if counted, err := evaluate[bool](tb, fmt.Sprintf(`new Date(new URL(document.querySelector('.problems a[href*=as_of]').href).searchParams.get('as_of')) > %d`, since.UnixMilli())); err != nil || !counted {
					return fmt.Errorf("open work is not counted (%v)", err)
				}
				return nil
			})
		}
		if _, err := evaluate[int](tb, `document.querySelectorAll('details').forEach(d => { d.open = true; }), 0`); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(path, "/process?source=local") || path == stuck {
			tb.drawn()
		}
		if strings.HasPrefix(path, "/process?") {
			tb.heated()
		}
		tb.linked(path)
		found, err := evaluate[[]number](tb, `[...document.querySelectorAll('a.fig[data-is]')].map(a => ({Is: a.dataset.is, Value: a.dataset.value, Href: a.getAttribute('href')}))`)
		fatal.If(t, err)
		for _, n := range found {
			place := n.Is + " " + n.Href
			said, known := lists[place]
			if !known {
				if said, err = evaluate[string](tb, count+"("+quoted(n.Href)+", "+quoted(n.Is)+")"); err != nil {
					t.Fatal(err)
				}
				lists[place] = said
			}
			if said != n.Value && n.Is != "total" { // which grows until now
				t.Errorf("%s: %s %s links to %s, which has %s", path, n.Is, n.Value, n.Href, said)
			}
		}
	}
	if len(lists) < 100 {
		t.Errorf("only %d numbers were found", len(lists))
	}
	tb.totals()
}

// totals compares the figures of the overview with its tables, without load.
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
				if (name === 'Dead-lettered') return []; // not by lane
				const shown = of((rate ? card.querySelector('.sum a') : card.querySelector('dd a')).textContent);
				return shown === want[name] ? [] : [name + ' is ' + shown + ', but ' + want[name] + ' in its table'];
			});
		})()`)
		if err == nil && len(wrong) > 0 {
			err = fmt.Errorf("%s", strings.Join(wrong, "\n"))
		}
		return err
	})
}
