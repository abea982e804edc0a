package api

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The description of the routes, written by hand. A test drives every route
// from it and checks every answer of every other test against it.
//
//go:embed openapi.yaml
var openAPI []byte

// documents are the answers that never change, made once.
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
	page, err := renderPage(openAPI)
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
	// The page needs nothing but its own style.
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

// description is what the page shows of openapi.yaml.
type description struct {
	Info struct {
		Title, Version, Summary, Description string
	}
	Paths      ordered
	Components struct {
		Parameters map[string]parameter
		Responses  map[string]response
		Schemas    ordered
	}
}

// ordered is a YAML object whose members are kept as they are written, in their
// order.
type ordered []struct {
	Name  string
	Value yaml.Node
}

func (o *ordered) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: not an object", n.Line)
	}
	for i := 0; i < len(n.Content); i += 2 {
		*o = append(*o, struct {
			Name  string
			Value yaml.Node
		}{n.Content[i].Value, *n.Content[i+1]})
	}
	return nil
}

type parameter struct {
	Ref                   string `yaml:"$ref"`
	Name, In, Description string
	Required              bool
}

type response struct {
	Ref         string `yaml:"$ref"`
	Description string
	Codes       []string `yaml:"x-codes"`
}

// operation is one box of the page.
type operation struct {
	OperationID          string `yaml:"operationId"`
	Summary, Description string
	Scope                string `yaml:"x-scope"`
	Extension            bool   `yaml:"x-extension"`
	Parameters           []parameter
	RequestBody          struct{ Content ordered } `yaml:"requestBody"`
	Responses            ordered

	Method, Path string   `yaml:"-"`
	Answers      []answer `yaml:"-"`
}

type answer struct {
	Status string
	response
}

// schema is what the page shows of a JSON schema.
type schema struct {
	Ref         string `yaml:"$ref"`
	Type        any
	Enum        []any
	Items       *schema
	Description string
	Properties  ordered

	Name    string   `yaml:"-"`
	Members []member `yaml:"-"`
}

// member is a row of a schema's table.
type member struct{ Name, Type, Description string }

// renderPage makes one self-contained page of the description.
func renderPage(source []byte) ([]byte, error) {
	var d description
	if err := yaml.Unmarshal(source, &d); err != nil {
		return nil, err
	}
	operations, err := d.operations()
	if err != nil {
		return nil, err
	}
	schemas, err := d.schemas()
	if err != nil {
		return nil, err
	}
	t, err := template.New("page").Funcs(template.FuncMap{"prose": prose}).Parse(pageTemplate)
	if err != nil {
		return nil, err
	}
	var page bytes.Buffer
	err = t.Execute(&page, map[string]any{"Info": d.Info, "Operations": operations, "Failures": failures, "Schemas": schemas})
	return page.Bytes(), err
}

var methods = []string{"get", "put", "post", "delete", "patch"}

func (d *description) operations() ([]operation, error) {
	var list []operation
	for _, path := range d.Paths {
		var shared struct{ Parameters []parameter }
		var members ordered
		if err := path.Value.Decode(&shared); err != nil {
			return nil, err
		}
		if err := path.Value.Decode(&members); err != nil {
			return nil, err
		}
		for _, m := range members {
			if !slices.Contains(methods, m.Name) {
				continue
			}
			o := operation{Method: strings.ToUpper(m.Name), Path: path.Name}
			if err := m.Value.Decode(&o); err != nil {
				return nil, err
			}
			o.Parameters = slices.Concat(shared.Parameters, o.Parameters)
			if err := d.resolve(&o); err != nil {
				return nil, err
			}
			list = append(list, o)
		}
	}
	return list, nil
}

// resolve replaces references by what they refer to.
func (d *description) resolve(o *operation) error {
	for i, p := range o.Parameters {
		if p.Ref != "" {
			o.Parameters[i] = d.Components.Parameters[last(p.Ref)]
		}
	}
	for _, r := range o.Responses {
		a := answer{Status: r.Name}
		if err := r.Value.Decode(&a.response); err != nil {
			return err
		}
		if a.Ref != "" {
			a.response = d.Components.Responses[last(a.Ref)]
		}
		o.Answers = append(o.Answers, a)
	}
	return nil
}

func last(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }

// schemas are those of the description that are objects with members.
func (d *description) schemas() ([]schema, error) {
	var list []schema
	for _, item := range d.Components.Schemas {
		s := schema{Name: item.Name}
		if err := item.Value.Decode(&s); err != nil {
			return nil, err
		}
		for _, property := range s.Properties {
			var p schema
			if err := property.Value.Decode(&p); err != nil {
				return nil, err
			}
			s.Members = append(s.Members, member{property.Name, p.typeName(), p.Description})
		}
		if len(s.Members) > 0 {
			list = append(list, s)
		}
	}
	return list, nil
}

// typeName says what a schema takes, in a word or two.
func (s *schema) typeName() string {
	switch {
	case s.Ref != "":
		return last(s.Ref)
	case s.Items != nil:
		return "array of " + s.Items.typeName()
	case len(s.Enum) > 0:
		var names []string
		for _, v := range s.Enum {
			if v != nil {
				names = append(names, fmt.Sprint(v))
			}
		}
		return strings.Join(names, " | ")
	}
	switch t := s.Type.(type) {
	case string:
		return t
	case []any:
		return fmt.Sprint(t[0]) // the others say what else is taken, such as null
	}
	return "any"
}

// prose renders the little Markdown of descriptions: paragraphs and code.
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
