package console_test

import (
	"encoding/csv"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/pkg/warehouse"
)

var (
	figures = regexp.MustCompile(`<a class="fig[^"]*" data-is="(\w+)" data-value="(\d+)"[^>]* href="([^"]+)"`)
	variant = regexp.MustCompile(`variant=\d+`)
	sums    = regexp.MustCompile(`<data data-is="(\w+)" value="(\d+)"`)
)

// testNumbers follows every number on the pages of processes and of an instance, and on
// the linked lists: each list has that count and duration.
func testNumbers(t *testing.T, w *world) {
	i := w.incident(t, "a")
	span := "&from=" + w.start.Add(10*time.Minute).Format(time.RFC3339) + "&to=" + w.start.Add(90*time.Minute).Format(time.RFC3339)
	for token, pages := range map[string][]string{
		reader: {
			"/", "/processes?compare=1&tenant=a" + span, "/process?compare=1&target=30m&source=cluster-a&id=order" + span, "/instances?compare=1" + span,
			"/process/elements?source=cluster-a&id=order-eu" + span, fmt.Sprintf("/instance?source=cluster-a&key=%d", i.Instance.Key),
			"/incidents?state=OPEN", "/jobs?window=all", "/tasks?window=all", "/timers?state=WAITING", "/messages?window=all", "/decisions?window=all",
		},
		tenants: {"/processes?window=all", "/process?source=cluster-a&id=order&window=all"},
	} {
		s, _ := w.open(t, token)
		seen, shapes := map[string]string{}, map[string]int{}
		for i := 0; i < len(pages); i++ { // a variant's page comes after its process's
			path := pages[i]
			res, body := s.get(path)
			if way := variant.FindString(body); strings.HasPrefix(path, "/process?") && way != "" {
				pages = append(pages, "/process/elements?source=cluster-a&id=order"+span+"&"+way)
			}
			for begun := time.Now(); path == "/" && !strings.Contains(body, "Jobs past their deadline") && time.Since(begun) < 30*time.Second; { // until open work is counted
				res, body = s.get(path)
			}
			if res.StatusCode != http.StatusOK || strings.Contains(body, "Not available") {
				t.Errorf("%s: %s\n%s", path, res.Status, body)
				continue
			}
			found := figures.FindAllStringSubmatch(body, -1)
			if len(found) < 2 && strings.HasPrefix(path, "/process") || len(found) < 12 && path == "/" {
				t.Errorf("%s has %d numbers", path, len(found))
			}
			for _, f := range found {
				is, value, to := f[1], f[2], html.UnescapeString(f[3])
				at, err := url.Parse(to)
				if err != nil {
					t.Fatal(err)
				}
				shape := is + at.Path + strings.Join(slices.Sorted(maps.Keys(at.Query())), " ") + at.Query().Get("state")
				if shapes[shape]++; shapes[shape] > 2 {
					continue // the others differ only in names; the browser test follows them all
				}
				list, known := seen[to]
				if !known {
					res, list = s.get(to)
					if seen[to] = list; res.StatusCode != http.StatusOK {
						t.Errorf("%s leads to %s: %s", path, to, res.Status)
					}
				}
				there := map[string]string{}
				for _, sum := range sums.FindAllStringSubmatch(list, -1) {
					there[sum[1]] = sum[2]
				}
				if there[is] != value && is != "total" { // it grows with the time of the request
					t.Errorf("%s: %s %s leads to %s, which has %q", path, is, value, to, there)
				}
			}
		}
		if len(seen) < 10 {
			t.Errorf("%d lists", len(seen))
		}
	}
}

// testLists tests filters, sorting, paging, and CSV of lists.
func testLists(t *testing.T, w *world) {
	s, _ := w.open(t, reader)
	get := func(path string, status int, texts ...string) string {
		t.Helper()
		res, body := s.get(path)
		wants(t, path, res, body, status, texts...)
		return body
	}
	count := func(path string) string {
		t.Helper()
		if found := sums.FindStringSubmatch(get(path, http.StatusOK)); found != nil {
			return found[2]
		}
		return "none"
	}
	all := count("/instances?window=all")
	if all == "0" || all == "none" {
		t.Fatalf("there are %s instances", all)
	}
	_, body := s.get("/instances.csv?window=all&sort=began")
	rows, err := csv.NewReader(strings.NewReader(body)).ReadAll()
	if err != nil || fmt.Sprint(len(rows)-1) != all {
		t.Errorf("the file has %d rows (%v), want %s", len(rows)-1, err, all)
	}
	first := get("/instances?window=all&sort=-took_ms", http.StatusOK, `aria-sort="descending"`, `rel="next"`, "1 to 100")
	if strings.Contains(first, "sort=-business") || !strings.Contains(first, "sort=-state") {
		t.Error("a column without a value is shown, or one with values is not")
	}
	second := get("/instances?window=all&sort=-took_ms&page=2", http.StatusOK, "101 to 200", `rel="prev"`)
	keys := regexp.MustCompile(`/instance\?key=(\d+)`)
	on := map[string]bool{}
	for _, page := range []string{first, second} {
		for _, k := range keys.FindAllStringSubmatch(page, -1) {
			if on[k[1]] {
				t.Errorf("%s is on two pages", k[1])
			}
			on[k[1]] = true
		}
	}
	if len(on) != 200 {
		t.Errorf("two pages have %d instances", len(on))
	}
	short, long := count("/instances?window=all&max=10m"), count("/instances?window=all&min=10m")
	var a, b, sum int
	fmt.Sscan(short+" "+long+" "+all, &a, &b, &sum)
	if a == 0 || b == 0 || a+b != sum {
		t.Errorf("%d up to 10 minutes and %d longer, of %d", a, b, sum)
	}
	// Menu links keep the filter, and its chip removes it.
	get("/instances?id=order&source=cluster-a&window=7d&state=ACTIVE", http.StatusOK, `href="/processes?id=order&amp;source=cluster-a&amp;window=7d"`, `href="/instances?id=order&amp;source=cluster-a&amp;window=7d" aria-label="Drop the filter State"`, `href="/incidents?id=order&amp;source=cluster-a&amp;window=7d"`)
	// Pages that have no such filter keep it, say so, and drop it.
	const filter = "?id=order&source=cluster-a&tenant=a&version=1&window=7d"
	for path, applied := range map[string]string{
		"/": "", "/sources": "", "/query": "", "/processes": "Source Process Tenant", "/incidents": "Source Process Tenant", "/instances": "Source Process Version Tenant", "/records": "Source Process Version Tenant",
	} {
		body := get(path+filter, http.StatusOK, html.EscapeString("/query"+filter), html.EscapeString("/processes"+filter))
		for _, name := range []string{"Source", "Process", "Version", "Tenant"} {
			label := name
			if !strings.Contains(applied, name) {
				label += ", not applied here"
			}
			if !strings.Contains(body, `aria-label="Drop the filter `+label+`"`) {
				t.Errorf("%s: the filter cannot be dropped as %q", path, label)
			}
		}
	}
	get("/instances?from=yesterday", http.StatusBadRequest, "is not a time")
	get("/instances?version=x", http.StatusBadRequest)
	// User input is not executed as SQL.
	for _, typed := range []string{"$tenants", "x' OR '1' = '1", `x\' OR 1 --`, "{a:String}"} {
		for _, k := range []string{"/instances?window=all&business=%s&error=%[1]s", "/instances?element=%s&at=now&source=%[1]s", "/jobs?type=%s&worker=%[1]s", "/elements?element=%s&type=%[1]s", "/incidents?message=%s", "/decisions?instance=%s"} {
			path := fmt.Sprintf(k, url.QueryEscape(typed))
			if body := get(path, http.StatusOK, "No matches"); strings.Contains(body, "Not available") {
				t.Errorf("%s:\n%s", path, body)
			}
		}
	}
	// A text key matches at any time.
	for i, intent := range []string{"ACTIVATED", "COMPLETED"} { // it has ended, since other tests count active instances
		w.store(t, fmt.Sprintf(`{"id":"t-%[1]d","partitionId":3,"position":%[1]d,"key":910000001,"timestamp":1600000000000,"recordType":"EVENT","valueType":"PROCESS_INSTANCE","intent":"ELEMENT_%[2]s","value":{"bpmnElementType":"PROCESS","bpmnProcessId":"named","elementId":"named","processInstanceKey":"order-17/b","version":1,"businessId":"B 17","tenantId":"<default>"}}`, 910_000_001+i, intent))
	}
	get("/instances?q=order-17%2Fb", http.StatusOK, "order-17/b", ">instance key<")
	get("/instances?window=all&business=B+17", http.StatusOK, "order-17/b")
	// An instance with nothing left but a late record.
	fatal(t, w.inserter.Retain(t.Context(), warehouse.Retention{Table: "instances", Days: 3000}))
	_, err = w.inserter.ExpireHistory(t.Context())
	fatal(t, err)
	w.store(t, `{"id":"t-3","partitionId":3,"position":910000003,"key":910000003,"timestamp":1500000000000,"recordType":"EVENT","valueType":"PROCESS_INSTANCE","intent":"ELEMENT_MIGRATED","value":{"bpmnElementType":"PROCESS","bpmnProcessId":"named","elementId":"named","processInstanceKey":"order-16","version":1,"tenantId":"<default>"}}`)
	get("/instances?any=1&state=EXPIRED", http.StatusOK, `value="1">1</data> instances`, "order-16", `"state state-EXPIRED"`)
}
