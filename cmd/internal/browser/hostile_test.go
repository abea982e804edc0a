package browser

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"sluice/pkg/fatal"
)

// hostileNames are names of processes, elements, variables and errors with markup, escapes,
// or parameters.
var hostileNames = map[string]string{
	"a script":         `<script>window.owned=1</script>`,
	"an attribute":     `"><img src=x onerror="window.owned=1">`,
	"very long":        strings.Repeat("long", 700),
	"right to left":    "\u202egnikcatta \u0645\u0631\u062d\u0628\u0627",
	"a NUL":            "nul\x00name",
	"a parameter":      "{a:String}",
	"quotes":           `a"b'c\d`,
	"our own names":    "$process $tenants",
	"percent and lf":   "%00%0a\n$1",
	"only spaces":      "   ",
	"of another plane": "\U0001F469\u200d\U0001F4BB\u0301",
}

const (
	entities = `<!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">
		<!ENTITY x SYSTEM "http://127.0.0.1:9/x"><!ENTITY f SYSTEM "file:///etc/passwd"><!ENTITY % p SYSTEM "http://127.0.0.1:9/p"> %p;]>`
	bpmn = `<?xml version="1.0"?>%s<bpmn:definitions xmlns:bpmn="http://www.omg.org/spec/BPMN/20100524/MODEL" xmlns:bpmndi="http://www.omg.org/spec/BPMN/20100524/DI"
		xmlns:dc="http://www.omg.org/spec/DD/20100524/DC" id="d"><bpmn:process id="p"><bpmn:startEvent id="s" name="%s"/></bpmn:process>
		<bpmndi:BPMNDiagram id="g"><bpmndi:BPMNPlane id="l" bpmnElement="p"><bpmndi:BPMNShape id="h" bpmnElement="s"><dc:Bounds x="1" y="1" width="36" height="36"/></bpmndi:BPMNShape>
		</bpmndi:BPMNPlane></bpmndi:BPMNDiagram></bpmn:definitions>`
)

// hostileDiagrams are invalid or malicious diagrams of PROCESS records.
var hostileDiagrams = map[string]string{
	"entities":  fmt.Sprintf(bpmn, entities, "&c;&x;&f;"),
	"markup":    fmt.Sprintf(bpmn, "", "&lt;img src=x onerror=&quot;window.owned=1&quot;&gt;"),
	"no BPMN":   `<html xmlns="http://www.w3.org/1999/xhtml"><script>window.owned=1</script></html>`,
	"no XML":    `{"a": 1}`,
	"very deep": strings.Repeat("<a>", 50_000),
}

// TestHostileRecordsDoNoHarm: pages show the content of records literally, and nothing of it
// changes the layout or runs.
func TestHostileRecordsDoNoHarm(t *testing.T) {
	at, key := time.Now().Add(-time.Minute).UnixMilli(), int64(770_000)
	var records []map[string]any
	add := func(kind, intent string, value map[string]any) {
		key++
		records = append(records, map[string]any{"partitionId": 7, "position": key, "id": fmt.Sprint("7-", key), "key": key, "timestamp": at, "recordType": "EVENT", "valueType": kind, "intent": intent, "value": value})
	}
	pages := map[string][]string{} // by name
	begin := func(name, process string) (of func(map[string]any) map[string]any) {
		instance := key + 1
		of = func(more map[string]any) map[string]any {
			v := map[string]any{"bpmnProcessId": process, "processInstanceKey": instance, "version": 1, "tenantId": "<default>"}
			for k, m := range more {
				v[k] = m
			}
			return v
		}
		add("PROCESS_INSTANCE", "ELEMENT_ACTIVATED", of(map[string]any{"elementId": process, "bpmnElementType": "PROCESS", "parentProcessInstanceKey": -1, "processDefinitionKey": instance}))
		pages[name] = []string{
			fmt.Sprintf("/instance?source=local&key=%d", instance), "/process?" + url.Values{"source": {"local"}, "id": {process}}.Encode(),
			"/instances?" + url.Values{"q": {process}}.Encode(), "/records?" + url.Values{"id": {process}}.Encode(),
		}
		return of
	}
	for name, text := range hostileNames {
		of := begin(name, text)
		add("PROCESS_INSTANCE", "ELEMENT_ACTIVATED", of(map[string]any{"elementId": text, "bpmnElementType": "SERVICE_TASK"}))
		add("VARIABLE", "CREATED", of(map[string]any{"name": text, "value": quoted(text), "scopeKey": key - 1}))
		add("INCIDENT", "CREATED", of(map[string]any{"errorType": text, "errorMessage": text, "elementId": text, "elementInstanceKey": key - 1}))
	}
	of := begin("a large value", "large")
	add("VARIABLE", "CREATED", of(map[string]any{"name": "large", "value": quoted(strings.Repeat("v", 4<<20)), "scopeKey": key}))
	add("INCIDENT", "CREATED", of(map[string]any{"errorType": "LARGE", "errorMessage": strings.Repeat("m", 1<<20), "elementId": "large"}))
	for name, xml := range hostileDiagrams {
		process := "diagram " + name
		begin(process, process)
		add("PROCESS", "CREATED", map[string]any{"bpmnProcessId": process, "version": 1, "processDefinitionKey": key, "resourceName": "x", "resource": base64.StdEncoding.EncodeToString([]byte(xml)), "tenantId": "<default>"})
	}
	body, err := json.Marshal(records)
	fatal.If(t, err)
	post(t, string(body))
	eventually(t, patience, func() error { // aggregates are queryable a moment after their records
		for table, want := range map[string]int{"process_instances": len(pages), "incidents": len(hostileNames) + 1, "variables": len(hostileNames) + 1} {
			if n := query(t, "SELECT uniqExact(process_instance_key) FROM flow."+table+" WHERE process_instance_key LIKE '77____'"); n != fmt.Sprint(want) {
				return fmt.Errorf("%s of %d are in %s", n, want, table)
			}
		}
		return nil
	})

	tb := signedIn(t)
	tb.screen("light", 390, 844)
	look := func(path string) {
		tb.do(chromedp.Navigate("http://"+stage.console+path), chromedp.WaitVisible(chromedp.CSS("h1")))
		tb.is(path+" shows what there is, fits a phone, and nothing has run", `!document.querySelector('main [role=alert], [aria-busy=true]') && !document.body.innerText.includes('Not available') &&
			document.documentElement.scrollWidth <= innerWidth + 1 && !window.owned && !document.querySelector('main script, main img')`)
		tb.linked(path)
	}
	for _, path := range []string{"/processes", "/instances", pages["only spaces"][0]} {
		look(path)
		tb.audit(path)
	}
	for name := range hostileNames {
		look(pages[name][0])
	}
	for _, path := range append(pages["a script"][2:], pages["very long"][1:]...) {
		look(path)
	}
	for _, name := range []string{"a NUL", "a parameter", "quotes"} {
		// Statements quote the name, and nothing in it is a parameter.
		tb.open(pages[name][1])
		said, err := evaluate[string](tb, count+`(document.querySelector('a.fig[href*="state=ACTIVE"]').getAttribute('href'), 'count')`)
		if err != nil || said != "1" {
			t.Errorf("%s: the list of active instances has %q (%v), want 1", name, said, err)
		}
	}
	for name := range hostileDiagrams {
		tb.open(pages["diagram "+name][1])
		tb.is("the diagram of "+name+" is drawn, or the page shows the reason", `(f => f.dataset.drawn === 'yes' || f.innerText.includes('The diagram is not available'))(document.querySelector('.diagram'))`)
		tb.is("nothing of it has run or was read", `!window.owned && !document.querySelector('.diagram script, .diagram img') && !document.body.innerText.includes('root:')`)
	}
	if size, err := evaluate[int](tb, `fetch(`+quoted(pages["a large value"][0])+`).then(r => r.text()).then(t => t.length)`); err != nil || size > 64<<10 {
		t.Errorf("the page of a large value has %d characters (%v)", size, err)
	}
	tb.open(pages["a large value"][0])
	tb.shows("4.0 MiB in total")
}
