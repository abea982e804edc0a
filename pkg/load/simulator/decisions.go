package simulator

import "time"

// decision is a DMN decision called by business rule tasks. Its required decision is evaluated first, and may fail.
type decision struct {
	id, name     string
	requirements string // id of the file of both
	needs        string // id of the required decision
	needsName    string
	input        string   // input variable of the required one
	outputs      []string // JSON, one per rule

	key, needsKey, requirementsKey int64
}

// decisionVersion is the version of all decisions, each deployed once.
const decisionVersion = 1

func decisionTables() []*decision {
	return []*decision{
		{
			id: "discount", name: "Discount of an order", requirements: "pricing", needs: "customer_class", needsName: "Class of the customer",
			input: "country", outputs: []string{`{"percent":0}`, `{"percent":5}`, `{"percent":12.5}`},
		},
		{
			id: "liability", name: "Who is liable", requirements: "claims", needs: "severity", needsName: "How bad it is",
			input: "amount", outputs: []string{`"full"`, `"partial"`, `"none, see \"terms\""`},
		},
	}
}

// evaluation is an immediate evaluation of a decision.
type evaluation struct {
	Decision
	in *instance
	el *element
	of *decision
}

// evaluate evaluates the decision of a business rule task. A failure stops the task before it is active, until its incident is
// resolved and the decision evaluated again. Some are never resolved.
func (el *element) evaluate(b batch) {
	e := el.in.e
	d := e.decisions[el.node.does]
	v := &evaluation{in: el.in, el: el, of: d}
	v.Decision = Decision{
		Key: el.in.p.nextKey(), Instance: &el.in.Instance, Element: &el.Element, Process: el.in.def.Process, ElementID: el.ID,
		ID: d.id, Name: d.name, Version: decisionVersion, EvaluatedAt: b.ms(),
	}
	if t := e.cfg.Truth; t != nil {
		t.Decisions = append(t.Decisions, &v.Decision)
	}
	if e.random.chance(120) {
		v.Output, v.FailedID = "null", d.needs
		v.Failure = "Expected to evaluate decision '" + d.id + "', but failed to evaluate expression '" + d.input + "': no variable found for name '" + d.input + "'"
		el.in.event(b, "DECISION_EVALUATION", "FAILED", v.Key, (*evaluationValue)(v))
		i := el.raise(b, "DECISION_EVALUATION_ERROR", v.Failure, nil)
		if e.random.chance(200) {
			e.left(el.in.top())
			return
		}
		el.after(e.between(time.Minute, 30*time.Minute), func() { el.evaluate(i.resolve()) })
		return
	}
	v.Output = pick(&e.random, d.outputs)
	el.in.event(b, "DECISION_EVALUATION", "EVALUATED", v.Key, (*evaluationValue)(v))
	el.triggered(b, el.node, v.Output)
	el.activated(b)
	el.complete(b)
}

type evaluationValue evaluation

func (v *evaluationValue) appendTo(dst []byte) []byte {
	d := v.of
	o := begin(dst).number("decisionKey", d.key).text("decisionId", d.id).text("decisionName", d.name).number("decisionVersion", decisionVersion).
		text("decisionRequirementsId", d.requirements).number("decisionRequirementsKey", d.requirementsKey).
		quoted("decisionOutput", v.Output).raw("variables", "{}").of(v.Process).number("processInstanceKey", v.in.Key).
		text("elementId", v.ElementID).number("elementInstanceKey", v.el.Key).
		quoted("evaluationFailureMessage", v.Failure).text("failedDecisionId", v.FailedID)
	o = append(o.name("evaluatedDecisions"), '[')
	o = v.evaluated(o, d.needs, d.needsName, d.needsKey, `"A"`)
	if v.Failure == "" {
		o = v.evaluated(append(o, ','), d.id, d.name, d.key, v.Output)
	}
	return append(o, `],`...).text("tenantId", v.in.Tenant).end()
}

// evaluated appends the result of one decision. A failed one has matched no rule.
func (v *evaluationValue) evaluated(o object, id, name string, key int64, output string) object {
	rules := `[{"ruleId":"rule_` + id + `","ruleIndex":1,"evaluatedOutputs":[{"outputId":"out_` + id + `","outputName":"` + id + `","outputValue":` +
		string(appendQuoted(nil, output)) + `}]}]`
	if v.FailedID == id {
		rules, output = "[]", "null"
	}
	return begin(o).text("decisionId", id).text("decisionName", name).number("decisionKey", key).number("decisionVersion", decisionVersion).
		text("decisionType", "DECISION_TABLE").quoted("decisionOutput", output).text("tenantId", v.in.Tenant).
		raw("evaluatedInputs", `[{"inputId":"in_`+id+`","inputName":"`+v.of.input+`","inputValue":"1"}]`).raw("matchedRules", rules).end()
}

// deployedDecision is called by a task, or required by such a decision.
type deployedDecision struct {
	id, name string
	key      int64
	of       *decision
}

func (d *decision) deployed() []*deployedDecision {
	return []*deployedDecision{{d.id, d.name, d.key, d}, {d.needs, d.needsName, d.needsKey, d}}
}

func (d *deployedDecision) appendTo(dst []byte) []byte {
	return begin(dst).text("decisionId", d.id).text("decisionName", d.name).number("version", decisionVersion).number("decisionKey", d.key).
		text("decisionRequirementsId", d.of.requirements).number("decisionRequirementsKey", d.of.requirementsKey).
		raw("isDuplicate", "false").text("tenantId", "<default>").end()
}

type requirementsValue decision

func (d *requirementsValue) appendTo(dst []byte) []byte {
	return begin(dst).text("decisionRequirementsId", d.requirements).text("decisionRequirementsName", d.requirements).
		number("decisionRequirementsVersion", decisionVersion).number("decisionRequirementsKey", d.requirementsKey).
		text("namespace", "http://camunda.org/schema/1.0/dmn").text("resourceName", d.requirements+".dmn").text("checksum", "").
		text("resource", "").raw("isDuplicate", "false").text("tenantId", "<default>").end()
}

// deployDecisions writes the decisions, each file before its contents. The first partition assigns the keys.
func (b batch) deployDecisions(all []*decision) {
	for _, d := range all {
		b.event("DECISION_REQUIREMENTS", "CREATED", d.requirementsKey, (*requirementsValue)(d))
		for _, one := range d.deployed() {
			b.event("DECISION", "CREATED", one.key, one)
		}
	}
}
