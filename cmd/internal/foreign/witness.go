package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"sync"
)

// witness is a transparent proxy between a broker and Sluice. It records requests and
// numbers of documents.
type witness struct {
	*httptest.Server

	mu        sync.Mutex
	documents map[string]int // by client
	asked     map[string]map[string]bool
	refused   map[string]int // answers other than 2xx, by request
}

func newWitness(target string) (*witness, error) {
	to, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	w := &witness{documents: map[string]int{}, asked: map[string]map[string]bool{}, refused: map[string]int{}}
	pass := httputil.NewSingleHostReverseProxy(to)
	pass.ModifyResponse = func(res *http.Response) error {
		if res.StatusCode/100 != 2 {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.refused[fmt.Sprintf("%s %s: %d", res.Request.Method, shortened(res.Request.URL), res.StatusCode)]++
		}
		return nil
	}
	w.Server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client disconnected
		}
		w.note(r, body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		pass.ServeHTTP(out, r)
	}))
	return w, nil
}

// varying matches the path elements that differ between like requests.
var varying = regexp.MustCompile(`(_index_template|_component_template)/.*`)

func shortened(u *url.URL) string { return varying.ReplaceAllString(u.EscapedPath(), "$1/…") }

func (w *witness) note(r *http.Request, body []byte) {
	user, _, _ := r.BasicAuth()
	how := fmt.Sprintf("%s %s", r.Method, shortened(r.URL))
	if r.URL.RawQuery != "" {
		how += "?" + r.URL.RawQuery
	}
	if len(body) > 0 {
		how += ", " + r.Header.Get("Content-Type")
		if r.ContentLength < 0 {
			how += ", chunked"
		}
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" {
		how += ", " + encoding
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked[user] == nil {
		w.asked[user] = map[string]bool{}
	}
	w.asked[user][how] = true
	if r.Method == http.MethodPost && r.URL.Path == "/_bulk" {
		w.documents[user] += bytes.Count(body, []byte("\n")) / 2
	}
}

// sent returns the number of documents that a client posted.
func (w *witness) sent(user string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.documents[user]
}

// requests returns the distinct requests of a client.
func (w *witness) requests(user string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.asked[user]))
}

// refusals returns the rejected requests.
func (w *witness) refusals() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.refused))
}
