package export

import (
	"encoding/xml"
	"fmt"
	"strconv"
	"time"

	"sluice/pkg/warehouse"
)

// xes writes a log of IEEE 1849, one trace for each instance.
type xes struct{ to *output }

// xesHead is what stands before the first trace. Every trace and every event
// has what is declared as global. The root has no namespace, as in the schema
// of the standard.
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

func newXES(to *output) (*xes, error) {
	_, err := to.WriteString(xesHead)
	return &xes{to}, err
}

func (x *xes) instance(c *warehouse.Case) (uint64, error) {
	all := events(c)
	x.line("<trace>")
	x.text("concept:name", caseID(c))
	x.text("source", c.Source)
	x.text("processInstanceKey", c.Key)
	x.text("process", c.Process)
	x.number("version", c.Version)
	x.number("processDefinitionKey", c.Definition)
	x.text("tenant", c.Tenant)
	x.text("state", c.State)
	for _, v := range all {
		x.line("<event>")
		x.text("concept:name", v.element.Element)
		x.text("lifecycle:transition", v.transition)
		x.line(`<date key="time:timestamp" value="` + stamp(v.at) + `"/>`)
		x.text("concept:instance", strconv.FormatInt(v.element.Key, 10))
		if v.resource != "" {
			x.text("org:resource", v.resource)
		}
		x.text("bpmnElementType", v.element.Type)
		x.line("</event>")
	}
	_, err := x.to.WriteString("</trace>\n") // the error of any write before
	return uint64(len(all)), err
}

func (x *xes) line(s string) {
	_, _ = x.to.WriteString(s)
	_ = x.to.WriteByte('\n')
}

func (x *xes) text(key, value string) {
	fmt.Fprintf(x.to, `<string key="%s" value="`, key)
	_ = xml.EscapeText(x.to, []byte(value))
	x.line(`"/>`)
}

func (x *xes) number(key string, value *int64) {
	if value != nil {
		fmt.Fprintf(x.to, "<int key=\"%s\" value=\"%d\"/>\n", key, *value)
	}
}

func (x *xes) close() error {
	_, err := x.to.WriteString("</log>\n")
	return err
}

// stamp is a moment as all text formats write it: UTC, in milliseconds.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
