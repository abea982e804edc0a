package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/google/go-cmp/cmp"

	"sluice/pkg/api"
	"sluice/pkg/change"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// contract is the api's own OpenAPI document.
type contract struct {
	doc    *openapi3.T
	router routers.Router
}

// contractOf parses the document once: it is the same in every api.
func contractOf(t testing.TB, d *door) *contract {
	onceContract.Do(func() {
		w := httptest.NewRecorder()
		d.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
		theContract = loadContract(t, w.Body.Bytes())
	})
	return theContract
}

var (
	onceContract sync.Once
	theContract  *contract
)

func loadContract(t testing.TB, served []byte) *contract {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(served)
	fatal.When(t, err != nil, "load the document: %v", err)
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatalf("the document is not OpenAPI: %v", err)
	}
	router, err := legacy.NewRouter(doc)
	fatal.If(t, err)
	return &contract{doc, router}
}

// check validates a request and its answer against the document: a successful request must be
// allowed, and every answer documented.
func (c *contract) check(t testing.TB, r *http.Request, body []byte, resp *http.Response, answer []byte) {
	t.Helper()
	route, params, err := c.router.FindRoute(r)
	if err != nil || bytes.Contains(answer, []byte(`"code":"no_such_route"`)) {
		if resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s %s was answered %d, but the document does not have it: %v", r.Method, r.URL, resp.StatusCode, err)
		}
		return
	}
	options := &openapi3filter.Options{
		AuthenticationFunc:    openapi3filter.NoopAuthenticationFunc, // tested by the answers
		IncludeResponseStatus: true,
	}
	input := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route, Options: options}
	plain := r.Header.Get("Content-Encoding") == ""
	if media, _, _ := strings.Cut(strings.ToLower(r.Header.Get("Content-Type")), ";"); resp.StatusCode == http.StatusOK && plain && media != "" {
		r.Body = io.NopCloser(bytes.NewReader(body))
		options.ExcludeRequestBody = !json.Valid(body) // newline-delimited JSON has no JSON schema
		if err := openapi3filter.ValidateRequest(t.Context(), input); err != nil {
			t.Errorf("%s %s was answered 200, but the document does not allow it: %v", r.Method, r.URL, err)
		}
	}
	out := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: resp.StatusCode, Header: resp.Header, Options: options,
	}
	out.SetBodyBytes(answer)
	options.ExcludeResponseBody = strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html")
	if err := openapi3filter.ValidateResponse(t.Context(), out); err != nil {
		t.Errorf("%s %s: the answer violates the document: %v", r.Method, r.URL, err)
	}
}

func TestTheDocumentHasExactlyTheRoutesThereAre(t *testing.T) {
	d := newDoor(t, config())
	var documented []string
	for path, item := range d.contract.doc.Paths.Map() {
		for method, op := range item.Operations() {
			scope, _ := op.Extensions["x-scope"].(string)
			documented = append(documented, strings.TrimSpace(method+" "+path+" "+scope))
		}
	}
	var there []string
	for _, r := range d.Routes() {
		path := strings.NewReplacer(":tableId", "{tableId}", ":fieldId", "{fieldId}").Replace(r.Path)
		there = append(there, strings.TrimSpace(r.Method+" "+path+" "+r.Scope))
	}
	slices.Sort(documented)
	slices.Sort(there)
	if diff := cmp.Diff(there, documented); diff != "" {
		t.Errorf("routes (-there +documented):\n%s", diff)
	}
}

func TestTheDocumentHasExactlyTheFailuresThereAre(t *testing.T) {
	d := newDoor(t, config())
	statuses := map[string]string{
		"BadRequest": "400", "Unauthorized": "401", "Forbidden": "403", "NotFound": "404", "MethodNotAllowed": "405",
		"NotAcceptable": "406", "Timeout": "408", "Conflict": "409", "PreconditionFailed": "412", "TooLarge": "413",
		"UnsupportedMediaType": "415", "Unprocessable": "422", "TooManyRequests": "429", "Internal": "500", "Unavailable": "503",
	}
	documented := map[string]string{}
	for name, response := range d.contract.doc.Components.Responses {
		codes, _ := response.Value.Extensions["x-codes"].([]any)
		for _, code := range codes {
			documented[code.(string)] = statuses[name]
		}
	}
	there := map[string]string{}
	var codes []any
	for _, f := range api.Failures() {
		there[f.Code] = f.Status
		codes = append(codes, f.Code)
	}
	if diff := cmp.Diff(there, documented); diff != "" {
		t.Errorf("failures (-there +documented):\n%s", diff)
	}
	if diff := cmp.Diff(codes, d.contract.doc.Components.Schemas["Code"].Value.Enum); diff != "" {
		t.Errorf("codes of problems (-there +documented):\n%s", diff)
	}
	for path, item := range d.contract.doc.Paths.Map() {
		for method, op := range item.Operations() {
			for status, response := range op.Responses.Map() {
				name := response.Ref[strings.LastIndexByte(response.Ref, '/')+1:]
				if want, ok := statuses[name]; ok && want != status {
					t.Errorf("%s %s documents %s as %s, want %s", method, path, name, status, want)
				}
			}
		}
	}
}

func TestTheDocumentHasExactlyTheMembersThereAre(t *testing.T) {
	d := newDoor(t, config())
	for name, shape := range map[string]*change.Shape{
		"User": change.UserShape, "Grant": change.GrantShape, "Project": change.ProjectShape, "DatasetField": change.FieldShape,
	} {
		there := map[string]string{}
		for member, typ := range shape.Members {
			there[member] = baseType(typ)
		}
		documented := map[string]string{}
		for member, schema := range d.contract.doc.Components.Schemas[name].Value.Properties {
			documented[member] = documentedType(schema.Value)
		}
		expect.Equal(t, fmt.Sprintf("members of %s (-there +documented)", name), there, documented)
	}
}

func baseType(t change.Type) string {
	if t.Base == "date-time" {
		return "string"
	}
	return t.Base
}

func documentedType(s *openapi3.Schema) string {
	if s.Type == nil && len(s.Enum) > 0 {
		return "string"
	}
	return s.Type.Slice()[0]
}

func TestTheExamplesOfTheDocumentWork(t *testing.T) {
	d := newDoor(t, config())
	examples := 0
	for path, item := range d.contract.doc.Paths.Map() {
		for method, op := range item.Operations() {
			if op.RequestBody == nil {
				continue
			}
			for media, content := range op.RequestBody.Value.Content {
				for name, example := range content.Examples {
					body, err := json.Marshal(example.Value.Value)
					fatal.If(t, err)
					examples++
					t.Run(name, func(t *testing.T) {
						wantOK(t, d.do(request(method, path, string(body), header("Content-Type", media))))
					})
				}
			}
		}
	}
	expect.Not(t, examples == 0, "the document has no examples")
}

func TestTheSamplesMatchTheDocument(t *testing.T) {
	samples, err := os.ReadFile("testdata/records.ndjson")
	fatal.If(t, err)
	d := newDoor(t, config())
	for line := range strings.Lines(string(samples)) {
		wantOK(t, d.post(line)) // d.do checks it against the document
	}
}

func TestThePageShowsEveryRouteAndFetchesNothing(t *testing.T) {
	d := newDoor(t, config())
	resp := d.do(request(http.MethodGet, "/docs", "", without("Authorization")))
	page := text(t, resp)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("got %d %s", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	for path, item := range d.contract.doc.Paths.Map() {
		for _, op := range item.Operations() {
			for _, want := range []string{path, op.Summary, `id="` + op.OperationID + `"`} {
				expect.Not(t, !strings.Contains(page, want), "the page lacks %q", want)
			}
		}
	}
	for _, f := range api.Failures() {
		expect.Not(t, f.Code != "method_not_allowed" && !strings.Contains(page, "<code>"+f.Code+"</code>"), "the page lacks the code %s", f.Code)
	}
	for _, outside := range []string{"http://", "https://", "//", "<script", "@import", "url("} {
		if i := strings.Index(page, outside); i >= 0 {
			t.Errorf("the page reaches out with %q: %s", outside, page[max(0, i-60):min(len(page), i+60)])
		}
	}
}
