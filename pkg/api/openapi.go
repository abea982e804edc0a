package api

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The description of the routes, written by hand. A test drives every route from it and
// validates the answers of all other tests.
//
//go:embed openapi.yaml
var openAPI []byte

// documents are the constant answers, made once.
type documents struct {
	openAPI, page []byte
}

func newDocuments(version, commit string) (*documents, error) {
	var document map[string]any
	if err := yaml.Unmarshal(openAPI, &document); err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	if about, ok := document["info"].(map[string]any); ok && version != "" {
		about["version"], about["x-commit"] = version, commit
	}
	asJSON, err := json.Marshal(document)
	if err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	page, err := renderPage(document)
	if err != nil {
		return nil, fmt.Errorf("page of openapi.yaml: %w", err)
	}
	return &documents{asJSON, page}, nil
}

func (s *Server) getOpenAPI(c *call) error {
	made, err := s.documents()
	if err != nil {
		return err
	}
	return answerDocument(c, "application/json", made.openAPI)
}

func (s *Server) getDocs(c *call) error {
	made, err := s.documents()
	if err != nil {
		return err
	}
	// The page needs only its own style.
	c.w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	return answerDocument(c, "text/html; charset=utf-8", made.page)
}

func answerDocument(c *call, media string, document []byte) error {
	h := c.w.Header()
	h.Set("Content-Type", media)
	h.Set("Content-Length", strconv.Itoa(len(document)))
	h.Set("Cache-Control", "public, max-age=300")
	h.Set("X-Content-Type-Options", "nosniff")
	c.w.WriteHeader(http.StatusOK)
	_, _ = c.w.Write(document)
	return nil
}

//go:embed page.html
var pageTemplate string

// renderPage renders the description as one self-contained page.
func renderPage(document map[string]any) ([]byte, error) {
	resolve := func(v any) any {
		ref, ok := v.(map[string]any)["$ref"].(string)
		if !ok {
			return v
		}
		var at any = document
		for _, name := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
			at = at.(map[string]any)[name]
		}
		return at
	}
	t, err := template.New("page").Funcs(template.FuncMap{"prose": prose, "upper": strings.ToUpper, "typeOf": typeOf, "resolve": resolve}).Parse(pageTemplate)
	if err != nil {
		return nil, err
	}
	var page bytes.Buffer
	err = t.Execute(&page, map[string]any{"Document": document, "Failures": failures})
	return page.Bytes(), err
}

// typeOf names the type of a schema.
func typeOf(schema map[string]any) string {
	if ref, ok := schema["$ref"].(string); ok {
		return ref[strings.LastIndexByte(ref, '/')+1:]
	}
	if items, ok := schema["items"].(map[string]any); ok {
		return "array of " + typeOf(items)
	}
	if values, ok := schema["enum"].([]any); ok {
		var names []string
		for _, v := range values {
			if v != nil {
				names = append(names, fmt.Sprint(v))
			}
		}
		return strings.Join(names, " | ")
	}
	switch t := schema["type"].(type) {
	case string:
		return t
	case []any:
		return fmt.Sprint(t[0]) // the others are alternatives, such as null
	}
	return "any"
}

// prose renders the Markdown of descriptions: paragraphs and code.
func prose(text string) template.HTML {
	var b strings.Builder
	for _, paragraph := range strings.Split(text, "\n\n") {
		b.WriteString("<p>")
		for i, part := range strings.Split(paragraph, "`") {
			if i%2 == 1 {
				b.WriteString("<code>" + template.HTMLEscapeString(part) + "</code>")
			} else {
				b.WriteString(template.HTMLEscapeString(part))
			}
		}
		b.WriteString("</p>")
	}
	return template.HTML(b.String())
}
