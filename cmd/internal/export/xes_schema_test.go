package export_test

import (
	"bytes"
	"encoding/xml"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// This file is what IEEE 1849 demands of a log, as far as its schema says it
// and a little more: make foreign holds the same log against the schema itself.

// node is an element of XML.
type node struct {
	name     string
	attr     map[string]string
	children []*node
}

// parseXML reads a document without namespaces.
func parseXML(t *testing.T, content []byte) *node {
	t.Helper()
	root := &node{}
	open := []*node{root}
	for d := xml.NewDecoder(bytes.NewReader(content)); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			n := &node{name: token.Name.Local, attr: map[string]string{}}
			if token.Name.Space != "" {
				t.Errorf("%s has a namespace", n.name)
			}
			for _, a := range token.Attr {
				n.attr[a.Name.Local] = a.Value
			}
			parent := open[len(open)-1]
			parent.children = append(parent.children, n)
			open = append(open, n)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			if strings.TrimSpace(string(token)) != "" {
				t.Errorf("the text %q stands between elements", token)
			}
		}
	}
	if len(root.children) != 1 {
		t.Fatalf("%d roots", len(root.children))
	}
	return root.children[0]
}

var (
	xmlName   = regexp.MustCompile(`^[A-Za-z_:][\w:.-]*$`)
	xmlNCName = regexp.MustCompile(`^[A-Za-z_][\w.-]*$`)
)

// valueTypes are the types of attributes, with what a value must be.
var valueTypes = map[string]func(string) bool{
	"string": func(string) bool { return true },
	"id":     func(string) bool { return true },
	"date": func(v string) bool {
		_, err := time.Parse(time.RFC3339, v)
		return err == nil
	},
	"int": func(v string) bool {
		_, err := strconv.ParseInt(v, 10, 64)
		return err == nil
	},
	"float": func(v string) bool {
		_, err := strconv.ParseFloat(v, 64)
		return err == nil
	},
	"boolean": func(v string) bool { return v == "true" || v == "false" },
}

// checkXES fails when a log is not valid.
func checkXES(t *testing.T, content []byte) {
	t.Helper()
	log := parseXML(t, content)
	if _, err := strconv.ParseFloat(log.attr["xes.version"], 64); log.name != "log" || err != nil {
		t.Errorf("the root is %s with the version %q", log.name, log.attr["xes.version"])
	}
	prefixes, globals := map[string]bool{}, map[string][]string{}
	order := []string{"extension", "global", "classifier", "", "trace", "event"}
	stage := 0
	for _, n := range log.children {
		name := n.name
		if valueTypes[name] != nil {
			name = ""
		}
		at := slices.Index(order, name)
		if at < stage {
			t.Fatalf("%s stands where no %s may", n.name, n.name)
		}
		stage = at
		switch n.name {
		case "extension":
			if !xmlNCName.MatchString(n.attr["name"]) || !xmlNCName.MatchString(n.attr["prefix"]) || n.attr["uri"] == "" {
				t.Errorf("the extension %v", n.attr)
			}
			prefixes[n.attr["prefix"]] = true
		case "global":
			globals[n.attr["scope"]] = append(globals[n.attr["scope"]], attributes(t, n, prefixes)...)
		case "classifier":
			if !xmlNCName.MatchString(n.attr["name"]) {
				t.Errorf("the classifier %v", n.attr)
			}
			for key := range strings.FieldsSeq(n.attr["keys"]) {
				if !slices.Contains(globals[n.attr["scope"]], key) {
					t.Errorf("the classifier %v uses %s, which not every %s has", n.attr, key, n.attr["scope"])
				}
			}
		case "trace":
			has(t, n, globals["trace"], attributes(t, n, prefixes))
			for _, e := range n.children {
				if e.name == "event" {
					has(t, e, globals["event"], attributes(t, e, prefixes))
				}
			}
		}
	}
	attributes(t, log, prefixes)
}

// attributes are the keys of a component, each of them once.
func attributes(t *testing.T, n *node, prefixes map[string]bool) (keys []string) {
	t.Helper()
	events := false
	for _, a := range n.children {
		valid := valueTypes[a.name]
		if valid == nil {
			events = events || a.name == "event"
			if n.name == "event" || n.name == "global" || n.name == "trace" && a.name != "event" {
				t.Errorf("%s is in %s", a.name, n.name)
			}
			continue
		}
		value, given := a.attr["value"]
		if key := a.attr["key"]; !xmlName.MatchString(key) || !given || !valid(value) || len(a.attr) != 2 || slices.Contains(keys, key) || events {
			t.Errorf("the %s %v of %s, which has %v", a.name, a.attr, n.name, keys)
		}
		if prefix, _, prefixed := strings.Cut(a.attr["key"], ":"); prefixed && !prefixes[prefix] {
			t.Errorf("%s is of an extension that is not declared", a.attr["key"])
		}
		keys = append(keys, a.attr["key"])
	}
	return keys
}

func has(t *testing.T, n *node, want, keys []string) {
	t.Helper()
	for _, key := range want {
		if !slices.Contains(keys, key) {
			t.Errorf("%s has no %s", n.name, key)
		}
	}
}
