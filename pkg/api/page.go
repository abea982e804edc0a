package api

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

//go:embed page.html
var pageTemplate string

// description is what the page shows of openapi.yaml, in the order it is
// written there.
type description struct {
	Info struct {
		Title, Version, Summary, Description string
	}
	Paths      yaml.MapSlice
	Components struct {
		Parameters map[string]parameter
		Responses  map[string]response
		Schemas    yaml.MapSlice
	}
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
	RequestBody          struct{ Content yaml.MapSlice } `yaml:"requestBody"`
	Responses            yaml.MapSlice

	Method, Path string   `yaml:"-"`
	Body         []string `yaml:"-"` // media types
	Answers      []answer `yaml:"-"`
}

type answer struct {
	Status string
	response
}

// member is a row of a schema's table.
type member struct{ Name, Type, Description string }

// schema is what the page shows of a JSON schema.
type schema struct {
	Ref         string `yaml:"$ref"`
	Type        any
	Enum        []any
	Items       *schema
	Description string
	Properties  yaml.MapSlice

	Name    string   `yaml:"-"`
	Members []member `yaml:"-"`
}

// renderPage makes one self-contained page of the description.
func renderPage(source []byte) ([]byte, error) {
	var d description
	if err := yaml.UnmarshalWithOptions(source, &d, yaml.UseOrderedMap()); err != nil {
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
	t, err := template.New("page").Funcs(template.FuncMap{"prose": prose, "join": strings.Join}).Parse(pageTemplate)
	if err != nil {
		return nil, err
	}
	var page bytes.Buffer
	err = t.Execute(&page, map[string]any{"Info": d.Info, "Operations": operations, "Schemas": schemas})
	return page.Bytes(), err
}

// convert reads a part of the description that was kept in order as what it is.
func convert(part, into any) error {
	b, err := yaml.Marshal(part)
	if err != nil {
		return err
	}
	return yaml.UnmarshalWithOptions(b, into, yaml.UseOrderedMap())
}

var methods = []string{"get", "put", "post", "delete", "patch"}

func (d *description) operations() ([]operation, error) {
	var list []operation
	for _, path := range d.Paths {
		item, ok := path.Value.(yaml.MapSlice)
		if !ok {
			return nil, fmt.Errorf("path %v is no object", path.Key)
		}
		var shared struct{ Parameters []parameter }
		if err := convert(item, &shared); err != nil {
			return nil, err
		}
		for _, m := range item {
			method := fmt.Sprint(m.Key)
			if !slices.Contains(methods, method) {
				continue
			}
			o := operation{Method: strings.ToUpper(method), Path: fmt.Sprint(path.Key)}
			if err := convert(m.Value, &o); err != nil {
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
	for _, c := range o.RequestBody.Content {
		o.Body = append(o.Body, fmt.Sprint(c.Key))
	}
	for _, r := range o.Responses {
		var a answer
		if err := convert(r.Value, &a.response); err != nil {
			return err
		}
		if a.Ref != "" {
			a.response = d.Components.Responses[last(a.Ref)]
		}
		a.Status = fmt.Sprint(r.Key)
		o.Answers = append(o.Answers, a)
	}
	return nil
}

func last(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }

// schemas are those of the description that are objects with members.
func (d *description) schemas() ([]schema, error) {
	var list []schema
	for _, item := range d.Components.Schemas {
		var s schema
		if err := convert(item.Value, &s); err != nil {
			return nil, err
		}
		s.Name = fmt.Sprint(item.Key)
		for _, property := range s.Properties {
			var p schema
			if err := convert(property.Value, &p); err != nil {
				return nil, err
			}
			s.Members = append(s.Members, member{fmt.Sprint(property.Key), p.typeName(), p.Description})
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
		return fmt.Sprint(t[0]) // the others say that null is taken too
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
