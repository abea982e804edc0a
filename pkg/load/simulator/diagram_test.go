package simulator_test

import (
	"encoding/json"
	"encoding/xml"
	"slices"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/load/simulator"
)

// bpmn has the tested parts of a BPMN file.
type bpmn struct {
	elements map[string]string // tag by id
	flows    map[string][2]string
	shapes   map[string]bounds
	edges    map[string]int // waypoints by id of the flow
}

type bounds struct {
	X      int `xml:"x,attr"`
	Y      int `xml:"y,attr"`
	Width  int `xml:"width,attr"`
	Height int `xml:"height,attr"`
}

func parseBPMN(t *testing.T, text string) bpmn {
	t.Helper()
	f := bpmn{map[string]string{}, map[string][2]string{}, map[string]bounds{}, map[string]int{}}
	in := xml.NewDecoder(strings.NewReader(text))
	of := "" // the element of the current shape or edge
	for {
		token, err := in.Token()
		if token == nil {
			break
		}
		fatal.When(t, err != nil, "%v in %s", err, text)
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		attr := func(name string) string {
			i := slices.IndexFunc(start.Attr, func(a xml.Attr) bool { return a.Name.Local == name })
			if i < 0 {
				return ""
			}
			return start.Attr[i].Value
		}
		switch name := start.Name.Local; name {
		case "BPMNShape", "BPMNEdge":
			of = attr("bpmnElement")
		case "waypoint":
			f.edges[of]++
		case "Bounds":
			var b bounds
			fatal.If(t, in.DecodeElement(&b, &start))
			f.shapes[of] = b
		case "sequenceFlow":
			f.flows[attr("id")] = [2]string{attr("sourceRef"), attr("targetRef")}
		default:
			if id := attr("id"); id != "" && strings.Contains(start.Name.Space, "BPMN/20100524/MODEL") {
				expect.Not(t, f.elements[id] != "", "the id %s is there twice", id)
				f.elements[id] = name
			}
		}
	}
	return f
}

// TestDiagramsHaveWhatHappens compares the BPMN of each version with the records of its
// instances: every element and every flow is in it, and drawn.
func TestDiagramsHaveWhatHappens(t *testing.T) {
	truth := new(simulator.Truth)
	took := map[string]bool{}
	for r := range simulator.New(simulator.Config{Seed: 5, Instances: 400, Truth: truth}).All() {
		if r.Intent == "SEQUENCE_FLOW_TAKEN" {
			took[decodeFlow(t, r)] = true
		}
	}
	files := map[string]bpmn{}
	for _, d := range truth.Definitions {
		f := parseBPMN(t, d.XML)
		files[d.BpmnProcessID] = f
		for id, ends := range f.flows {
			if f.elements[ends[0]] == "" || f.elements[ends[1]] == "" {
				t.Errorf("%s: flow %s from %s to %s", d.BpmnProcessID, id, ends[0], ends[1])
			}
			if f.edges[id] < 2 {
				t.Errorf("%s: flow %s is not drawn", d.BpmnProcessID, id)
			}
		}
		for id, a := range f.shapes {
			for other, b := range f.shapes {
				apart := a.X+a.Width <= b.X || b.X+b.Width <= a.X || a.Y+a.Height <= b.Y || b.Y+b.Height <= a.Y
				within := f.elements[id] == "subProcess" || f.elements[other] == "subProcess" || f.elements[id] == "boundaryEvent" || f.elements[other] == "boundaryEvent"
				if id != other && !apart && !within {
					t.Errorf("%s: %s and %s lie on each other", d.BpmnProcessID, id, other)
				}
			}
		}
	}
	fatal.When(t, len(files) != 6, "%d processes", len(files))
	for _, e := range truth.Elements {
		f := files[e.Process.BpmnProcessID]
		if _, drawn := f.shapes[e.ID]; e.Type != "PROCESS" && (!drawn || f.elements[e.ID] == "") {
			t.Fatalf("%s: no shape of %s", e.Process.BpmnProcessID, e.ID)
		}
	}
	for flow := range took {
		process, id, _ := strings.Cut(flow, " ")
		if _, known := files[process].flows[id]; !known {
			t.Errorf("%s: no flow %s", process, id)
		}
	}
	for _, want := range []string{"order flow_in_stock_2", "order flow_card_refused", "order flow_ready_2", "order flow_pack", "order flow_ready_join", "claim flow_fraud"} {
		expect.Not(t, !took[want], "%s was never taken", want)
	}
}

// decodeFlow returns the process and the id of a taken flow.
func decodeFlow(t *testing.T, r simulator.Record) string {
	t.Helper()
	var v struct {
		Value struct {
			Process string `json:"bpmnProcessId"`
			Element string `json:"elementId"`
		} `json:"value"`
	}
	fatal.If(t, json.Unmarshal(r.JSON, &v))
	return v.Value.Process + " " + v.Value.Element
}
