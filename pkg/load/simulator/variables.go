package simulator

import "strconv"

type variable struct {
	Variable
	in *instance
}

// set sets a variable of the scope, in JSON.
func (el *element) set(b batch, name, json string) {
	for _, v := range el.variables {
		if v.Name != name {
			continue
		}
		v.Value, v.UpdatedAt = json, b.ms()
		v.Changes++
		el.in.event(b, "VARIABLE", "UPDATED", v.Key, (*variableValue)(v))
		return
	}
	v := &variable{in: el.in}
	v.Variable = Variable{
		Key: el.in.p.nextKey(), Instance: &el.in.Instance, Scope: el.Key, Process: el.in.def.Process,
		Name: name, First: json, Value: json, CreatedAt: b.ms(), UpdatedAt: b.ms(),
	}
	el.variables = append(el.variables, v)
	if t := el.in.e.cfg.Truth; t != nil {
		t.Variables = append(t.Variables, &v.Variable)
	}
	el.in.event(b, "VARIABLE", "CREATED", v.Key, (*variableValue)(v))
}

// merge sets a variable in the innermost scope that has it, else in the instance.
func (el *element) merge(b batch, name, json string) {
	for scope := el; ; scope = scope.scope {
		if scope.scope == nil || scope.knows(name) {
			scope.set(b, name, json)
			return
		}
	}
}

func (el *element) knows(name string) bool {
	for _, v := range el.variables {
		if v.Name == name {
			return true
		}
	}
	return false
}

// firstVariables sets the variables at the creation of an instance.
func (in *instance) firstVariables(b batch) {
	r := &in.e.random
	in.root.set(b, "amount", strconv.FormatInt(r.below(5000), 10)+"."+strconv.FormatInt(1+r.below(9), 10))
	in.root.set(b, "country", `"`+pick(r, []string{"DE", "FR", "PL", "JP"})+`"`)
	if r.chance(300) {
		in.root.set(b, "note", pick(r, []string{"null", `"Grüße"`, `{"a":[1,2]}`, `"say \"yes\""`, "true"}))
	}
}

// result returns the variables from a worker, a person or a message.
func (e *Engine) result() string { return `{"code":` + strconv.FormatInt(e.random.below(10), 10) + `}` }
