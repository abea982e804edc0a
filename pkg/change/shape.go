package change

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Shape is an object of the specification: its members by name. Other members are kept
// unchanged.
type Shape struct {
	Name    string // as in the specification; empty for an object within another
	Members map[string]Type
}

// Type is the specified type of a member. null is always valid: in a patch it removes,
// elsewhere it means no value.
type Type struct {
	Base   string   // string, integer, boolean, array, object, date-time
	Elem   *Type    // of an array
	Shape  *Shape   // of an object; nil when it is free-form
	Values []string // a string is one of these; nil for any
	Open   bool     // a string outside Values is kept, with a warning
}

// String writes the type as the specification does.
func (t Type) String() string {
	switch {
	case t.Base == "array":
		return "array<" + strings.TrimSuffix(t.Elem.String(), " object") + ">"
	case t.Shape != nil && t.Shape.Name != "":
		return t.Shape.Name + " object"
	case t.Base == "date-time":
		return "string"
	}
	return t.Base
}

// Codes of Warnings.
const (
	UnknownFeature   = "unknown_feature"   // an element of feature that the specification does not list; kept
	AuthorityIgnored = "authority_ignored" // a removed member that only an admin may set
)

// Warnings counts, by code, findings in an accepted body.
type Warnings map[string]int

// maxProblems bounds the reported problems of a body.
const maxProblems = 100

// checker compares a body with its shape.
type checker struct {
	path     path
	problems []Problem
	warnings Warnings
}

func check(object map[string]any, shape *Shape) (Warnings, error) {
	c := checker{warnings: Warnings{}}
	c.object(object, shape)
	if len(c.problems) > 0 {
		return nil, &ProblemsError{Problems: c.problems}
	}
	return c.warnings, nil
}

func (c *checker) object(object map[string]any, shape *Shape) {
	for _, name := range slices.Sorted(maps.Keys(shape.Members)) {
		v, ok := object[name]
		if !ok || v == nil || len(c.problems) == maxProblems {
			continue
		}
		c.path.in(name)
		c.value(v, shape.Members[name])
		c.path.out()
	}
}

func (c *checker) array(array []any, elem Type) {
	for i, v := range array {
		if len(c.problems) == maxProblems {
			return
		}
		c.path.at(i)
		c.value(v, elem)
		c.path.out()
	}
}

func (c *checker) value(v any, t Type) {
	switch v := v.(type) {
	case map[string]any:
		if t.Base == "object" {
			if t.Shape != nil {
				c.object(v, t.Shape)
			}
			return
		}
	case []any:
		if t.Base == "array" {
			c.array(v, *t.Elem)
			return
		}
	case bool:
		if t.Base == "boolean" {
			return
		}
	case json.Number:
		if t.Base == "integer" {
			c.integer(v.String())
			return
		}
	case string:
		if t.Base == "string" || t.Base == "date-time" {
			c.text(v, t)
			return
		}
	}
	c.problem("wrong_type", fmt.Sprintf("Must be of type %s.", t))
}

func (c *checker) text(s string, t Type) {
	if t.Base == "date-time" {
		if _, err := time.Parse(time.RFC3339, s); err != nil {
			c.problem("not_a_date_time", "Must be a date and time such as 2024-05-06T07:08:09Z.")
		}
		return
	}
	if t.Values == nil || slices.Contains(t.Values, s) {
		return
	}
	if t.Open {
		c.warnings[UnknownFeature]++
		return
	}
	c.problem("unknown_value", fmt.Sprintf("Must be one of %s.", strings.Join(t.Values, ", ")))
}

func (c *checker) integer(text string) {
	if !isInteger(text) {
		c.problem("not_an_integer", "Must be a whole number of at most 64 bits.")
	}
}

func (c *checker) problem(code, detail string) {
	c.problems = append(c.problems, Problem{Pointer: c.path.String(), Code: code, Detail: detail})
}

// isInteger reports whether a JSON number is an int64, as 5, 5.0 and 50e-1 are.
func isInteger(number string) bool {
	if _, err := strconv.ParseInt(number, 10, 64); err == nil {
		return true
	}
	if !strings.ContainsAny(number, ".eE") {
		return false
	}
	f, err := strconv.ParseFloat(number, 64)
	return err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<63
}

// The shapes of the specification. A test compares them with its tables.
var (
	UserShape = &Shape{Name: "User", Members: map[string]Type{
		"ak":                 text,
		"sk":                 text,
		"company":            text,
		"createTime":         text,
		"grant":              object(GrantShape),
		"id":                 text,
		"industry":           text,
		"name":               text,
		"password":           text,
		"password1":          text,
		"privileges":         array(integer),
		"projects":           array(object(ProjectShape)),
		"remarks":            text,
		"status":             boolean,
		"tableFieldsSetting": freeForm,
		"telephone":          text,
		"type":               integer,
	}}

	GrantShape = &Shape{Name: "Grant", Members: map[string]Type{
		"dataGathering":  within("point"),
		"edition":        {Base: "string", Values: []string{"free", "business"}},
		"feature":        array(feature),
		"flow":           within("flowCount", "tableCount"),
		"isSmallProduct": boolean,
		"licenseName":    text,
		"licenseType":    text,
		"licenseVersion": text,
		"macAddr":        array(text),
		"remainingTime":  integer,
		"skipMac":        boolean,
		"smallProducts":  array(text),
		"startTime":      text,
		"status":         boolean,
		"userCount":      integer,
		"userName":       text,
		"validityPeriod": integer,
		"version":        text,
		"visual":         within("dashboardCount"),
	}}

	ProjectShape = &Shape{Name: "Project", Members: map[string]Type{
		"bgColor":     text,
		"collections": array(text),
		"createTime":  text,
		"default":     boolean,
		"domain":      text,
		"grant":       object(GrantShape),
		"hasSSO":      boolean,
		"i18nProp":    freeForm,
		"id":          text,
		"industry":    text,
		"isUseDomain": boolean,
		"license":     object(GrantShape),
		"name":        text,
		"planId":      text,
		"projectType": text,
		"remarks":     text,
		"status":      boolean,
		"url":         text,
		"user":        freeForm,
	}}

	FieldShape = &Shape{Name: "Dataset field", Members: map[string]Type{
		"id":             text,
		"name":           text,
		"originalName":   text,
		"biType":         text,
		"originalBiType": text,
		"biTypeFmt":      text,
		"originalType":   text,
		"calculated":     boolean,
		"checked":        boolean,
		"isMeasure":      boolean,
		"colIndex":       integer,
		"userColIdx":     integer,
		"size":           integer,
		"style":          freeForm,
		"tableId":        text,
		"tableName":      text,
		"createdAt":      dateTime,
		"updatedAt":      dateTime,
	}}
)

var (
	text     = Type{Base: "string"}
	integer  = Type{Base: "integer"}
	boolean  = Type{Base: "boolean"}
	freeForm = Type{Base: "object"}
	dateTime = Type{Base: "date-time"}
	feature  = Type{Base: "string", Open: true, Values: []string{
		"gis", "threeD", "dashboardPlayback", "isc", "hikH5", "video", "handlerScript", "handlerNotification",
		"handlerGateway", "sdk", "Oauth", "BI", "pressMoney", "i18n", "AI",
	}}
)

func array(elem Type) Type     { return Type{Base: "array", Elem: &elem} }
func object(shape *Shape) Type { return Type{Base: "object", Shape: shape} }

// within is an object within another that holds counts.
func within(counts ...string) Type {
	members := make(map[string]Type, len(counts))
	for _, name := range counts {
		members[name] = integer
	}
	return object(&Shape{Members: members})
}
