package export

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
)

//go:embed objects.sql
var objectsSQL string

type attribute struct {
	Name string `json:"name"`
	Type string `json:"type"` // string or integer
}

// objectType declares a type of objects or of events.
type objectType struct {
	Name       json.RawMessage `json:"name"`
	Attributes []attribute     `json:"attributes"`
}

func declare(name string, integers, texts string) objectType {
	t := objectType{Name: json.RawMessage(name)}
	for name := range strings.FieldsSeq(texts) {
		t.Attributes = append(t.Attributes, attribute{name, "string"})
	}
	for name := range strings.FieldsSeq(integers) {
		t.Attributes = append(t.Attributes, attribute{name, "integer"})
	}
	return t
}

var objectTypes = []objectType{
	declare(`"instance"`, "version", "source key tenant process name state"),
	declare(`"element"`, "", "elementId name bpmnElementType state"),
	declare(`"job"`, "retries failures", "jobType worker state"),
	declare(`"user task"`, "", "assignee state"),
	declare(`"incident"`, "", "errorType errorMessage state"),
	declare(`"definition"`, "version", "source process name"),
}

// ocel writes OCEL 2.0 as JSON: events, objects, then types. Objects are queried after
// the events, so that the file has the objects of every event.
func (cfg Config) ocel(ctx context.Context, to *output) error {
	with, rest, _ := strings.Cut(cfg.withVariables(objectsSQL), "-- select events\n")
	selectEvents, selectObjects, _ := strings.Cut(rest, "-- select objects\n")
	events, err := cfg.list(ctx, to, `{"events":[`, with+selectEvents)
	if err != nil {
		return err
	}
	if _, err := cfg.list(ctx, to, "\n],\n\"objects\":[", with+selectObjects); err != nil {
		return err
	}
	eventTypes := []objectType{}
	for _, name := range slices.Sorted(maps.Keys(events)) {
		eventTypes = append(eventTypes, declare(name, "", "resource jobType errorType"))
	}
	objects := slices.Clone(objectTypes)
	for _, name := range cfg.Variables {
		objects[0].Attributes = append(slices.Clip(objects[0].Attributes), attribute{"variable." + name, "string"})
	}
	types, err := json.Marshal(map[string]any{"eventTypes": eventTypes, "objectTypes": objects})
	if err != nil {
		return err
	}
	_, err = to.WriteString("\n],\n" + string(types[1:]) + "\n")
	return err
}

// list queries rows of (type, item), writes the items as a JSON list, and returns the
// types.
func (cfg Config) list(ctx context.Context, to *output, head, statement string) (map[string]bool, error) {
	types := map[string]bool{}
	before := head + "\n"
	rows := &lines{each: func(line []byte) error {
		kind, item, two := bytes.Cut(line, []byte("\t"))
		if !two || !json.Valid(item) {
			return errors.New("ClickHouse failed while answering: " + string(line))
		}
		types[string(kind)] = true
		_, _ = to.WriteString(before) // the next Write returns its error
		before = ",\n"
		_, err := to.Write(item)
		return err
	}}
	err := cfg.copy(ctx, statement, printed{"TSVRaw", "}\n"}, rows)
	if err == nil && len(types) == 0 {
		_, err = to.WriteString(head)
	}
	return types, err
}
