package record

import (
	"slices"

	"sluice/pkg/flow"
)

// ExcludedBy returns how many records each rule of Limits.Exclude excluded, in order;
// nil if none.
func (r *Request) ExcludedBy() []int { return r.excluded }

// rule returns the first rule that the current record matches, counted from 1; 0 if none.
func (p *parser) rule() uint16 {
	w := p.w
	for i, e := range p.lim.Exclude {
		if w.matches(e.ValueType, fieldValueType) && w.matches(e.Intent, fieldIntent) && w.matches(e.Process, fieldBpmnProcessID) &&
			(e.Variable == "" || string(w.text(w.get(fieldValueType))) == "VARIABLE" && flow.Glob(e.Variable, w.variableName())) {
			return uint16(i + 1)
		}
	}
	return 0
}

func (w *walker) matches(pattern string, f field) bool {
	return pattern == "" || flow.Glob(pattern, w.text(w.get(f)))
}

// variableName is value.name, which is not a field.
func (w *walker) variableName() []byte {
	if len(w.variableNames) == 0 {
		return nil
	}
	at := w.variableNames[len(w.variableNames)-1]
	text := scanner{b: w.b}
	end, k := text.skip(int(at), 0)
	if end < 0 || k != kindString && k != kindEscaped {
		return nil
	}
	return w.plainName(value{at, uint32(end), k})
}

// leaveOut removes the excluded records once all are read: until then problem indexes
// count them.
func (r *Request) leaveOut(rules int) {
	excluded := func(p posted) bool { return p.rule > 0 }
	if !slices.ContainsFunc(r.records, excluded) {
		return
	}
	r.excluded = make([]int, rules)
	for _, p := range r.records {
		if excluded(p) {
			r.excluded[p.rule-1]++
		}
	}
	r.records = slices.DeleteFunc(r.records, excluded)
}
