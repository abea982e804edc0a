package export

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"strings"
)

// xesHead precedes the first trace. Every trace and event must have the attributes
// declared global. The root has no namespace, as in the standard's schema.
const xesHead = xml.Header + `<log xes.version="1849.2016" xes.features="">
<extension name="Concept" prefix="concept" uri="http://www.xes-standard.org/concept.xesext"/>
<extension name="Lifecycle" prefix="lifecycle" uri="http://www.xes-standard.org/lifecycle.xesext"/>
<extension name="Time" prefix="time" uri="http://www.xes-standard.org/time.xesext"/>
<extension name="Organizational" prefix="org" uri="http://www.xes-standard.org/org.xesext"/>
<global scope="trace">
<string key="concept:name" value=""/>
</global>
<global scope="event">
<string key="concept:name" value=""/>
<string key="lifecycle:transition" value="complete"/>
<date key="time:timestamp" value="1970-01-01T00:00:00.000Z"/>
</global>
<classifier name="Activity" scope="event" keys="concept:name"/>
<classifier name="ActivityAndTransition" scope="event" keys="concept:name lifecycle:transition"/>
<string key="lifecycle:model" value="standard"/>
`

// row has the columns of events.sql that XES needs.
type row struct {
	Case       string `json:"case:concept:name"`
	Activity   string `json:"concept:name"`
	Transition string `json:"lifecycle:transition"`
	At         string `json:"time:timestamp"`
	Resource   string `json:"org:resource"`
	Instance   string `json:"concept:instance"`
	Name       string `json:"bpmn:name"`
	Type       string `json:"bpmn:type"`
	Source     string `json:"case:source"`
	Key        string `json:"case:key"`
	Process    string `json:"case:process"`
	Version    *int64 `json:"case:version"`
	Definition *int64 `json:"case:definition"`
	Tenant     string `json:"case:tenant"`
	State      string `json:"case:state"`
	Title      string `json:"case:name"`
	Parent     string `json:"case:parent"`
	Caller     *int64 `json:"case:caller"`
	Root       string `json:"case:root"`
}

// xes writes a log of IEEE 1849, one trace for each instance.
func (cfg Config) xes(ctx context.Context, to *output) error {
	_, _ = to.WriteString(xesHead) // the last write returns the error of any
	before := ""                   // the previous row's instance
	rows := &lines{each: func(line []byte) error {
		var r row
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("ClickHouse failed while answering: %.512s", line)
		}
		var b strings.Builder
		if r.Case != before {
			if before != "" {
				b.WriteString("</trace>\n")
			}
			b.WriteString("<trace>\n")
			xesText(&b, "concept:name", r.Case)
			xesText(&b, "source", r.Source)
			xesText(&b, "processInstanceKey", r.Key)
			xesText(&b, "process", r.Process)
			xesNumber(&b, "version", r.Version)
			xesNumber(&b, "processDefinitionKey", r.Definition)
			xesText(&b, "tenant", r.Tenant)
			xesText(&b, "state", r.State)
			xesOptional(&b, "name", r.Title)
			xesOptional(&b, "parent", r.Parent)
			xesNumber(&b, "caller", r.Caller)
			xesText(&b, "root", r.Root)
			if err := cfg.xesVariables(&b, line); err != nil {
				return err
			}
			before = r.Case
		}
		b.WriteString("<event>\n")
		xesText(&b, "concept:name", r.Activity)
		xesText(&b, "lifecycle:transition", r.Transition)
		fmt.Fprintf(&b, "<date key=\"time:timestamp\" value=\"%s\"/>\n", r.At)
		xesText(&b, "concept:instance", r.Instance)
		xesOptional(&b, "org:resource", r.Resource)
		xesOptional(&b, "bpmnElementName", r.Name)
		xesText(&b, "bpmnElementType", r.Type)
		b.WriteString("</event>\n")
		_, err := to.WriteString(b.String())
		return err
	}}
	if err := cfg.copy(ctx, cfg.withVariables(eventsSQL), formats["ndjson"], rows); err != nil {
		return err
	}
	if before != "" {
		_, _ = to.WriteString("</trace>\n")
	}
	_, err := to.WriteString("</log>\n")
	return err
}

func xesText(to *strings.Builder, key, value string) {
	to.WriteString(`<string key="`)
	_ = xml.EscapeText(to, []byte(key)) // a Builder never fails
	to.WriteString(`" value="`)
	_ = xml.EscapeText(to, []byte(value))
	to.WriteString("\"/>\n")
}

func xesOptional(to *strings.Builder, key, value string) {
	if value != "" {
		xesText(to, key, value)
	}
}

// xesVariables writes the chosen variables of a row, without those that its case lacks.
func (cfg Config) xesVariables(to *strings.Builder, line []byte) error {
	if len(cfg.Variables) == 0 {
		return nil
	}
	var row map[string]any
	err := json.Unmarshal(line, &row)
	for _, name := range cfg.attributes() {
		value, _ := row[name].(string)
		xesOptional(to, strings.ReplaceAll(strings.TrimPrefix(name, "case:"), ":", "_"), value)
	}
	return err
}

func xesNumber(to *strings.Builder, key string, value *int64) {
	if value != nil {
		fmt.Fprintf(to, "<int key=\"%s\" value=\"%d\"/>\n", key, *value)
	}
}
