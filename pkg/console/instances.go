package console

import (
	"context"
	"fmt"
	"regexp"
	"strings"
)

var instanceKind = &kind{
	Path: "/instances", Title: "Instances", Many: "instances",
	columns: []column{{"instance", "Instance"}, {"process", "Process"}, {"business_key", "Business key"}, {"state", "State"}, {"began", "Started"}, {"ended", "Ended"}, {"took_ms", "Duration"}, {"incidents", "#Incidents"}, {"tenant", "Tenant"}, {"source", "Source"}},
	filters: []filter{
		{Name: "q", Label: "Key, variable (name=value), or error text", Size: 34},
		statesOf("ACTIVE", "COMPLETED", "CANCELED", "EXPIRED"),
		{Name: "incident", Label: "Incident", Choices: []choice{{"", "any"}, {"open", "open"}, {"had", "open or resolved"}, {"trouble", "any, or canceled"}}},
		{Name: "at", Label: "At element", Choices: []choice{{"", "at any time"}, {"now", "now"}, {"incident", "with an open incident"}}, more: true},
		{Name: "error", Label: "Error type", Size: 16, more: true},
		{Name: "business", Label: "Business key", Size: 14, column: "business_key", more: true},
		{Name: "quiet", Label: "No event for", Span: true, Size: 5, more: true},
		{Name: "min", Label: "Duration from", Span: true, Size: 5, more: true},
		{Name: "max", Label: "to, such as 90s, 2h, 3d", Span: true, Size: 5, more: true},
		{Name: "bar", Label: "Histogram bar", Digits: true, Size: 3, more: true},
		{Name: "variant", Label: "Variant", Digits: true, Size: 8, more: true},
		{Name: "called", Label: "Calling instance", Size: 14, more: true},
		{Name: "caller", Label: "Calling process", Size: 14, more: true},
	},
}

func init() { // avoids an initialization cycle
	instanceKind.rows, instanceKind.matches = (*asked).instanceRows, (*asked).ofInstance
}

// ongoing reports whether the list has only active instances.
func (a *asked) ongoing() bool {
	return a.Value("state") == "ACTIVE" || a.Value("incident") == "open" || a.Value("at") != ""
}

// chosen is the process of the filters.
func (a *asked) chosen() chosen {
	c := chosen{Source: a.Value("source"), Process: a.Value("id"), Variant: a.Value("variant"), Window: a.Window}
	fmt.Sscan(a.Value("version"), &c.Version)
	return c
}

const key = "(source, process_instance_key)"

// instanceRows are the instances of a list. Conditions on other tables select keys there,
// before FINAL merges rows.
func (a *asked) instanceRows() string {
	if a.only != "" {
		return a.instancesOf([]string{a.only})
	}
	var all []string
	if source := a.Value("source"); source != "" {
		all = append(all, "source = "+quote(source))
	}
	within := func(seed string) { all = append(all, key+" GLOBAL IN\n        ("+seed+")") }
	text := a.Value("q")
	switch {
	case text != "" && !nameValue.MatchString(text) && !strings.ContainsAny(text, " \t") || a.Value("instance") != "":
		// a key matches at any time, see ofText
	case a.Value("at") == "now":
	case a.Anytime() && a.ongoing():
		all = append(all, found(active(strings.Join(append(all, "1"), " AND "))))
	case !a.Anytime():
		all = append(all, a.Window.within("started_at"))
	}
	if instance := a.Value("instance"); instance != "" {
		all = append(all, "process_instance_key = "+quote(instance))
	}
	if element := a.Value("element"); element != "" {
		within(a.atElement(element))
	}
	if kind := a.Value("error"); kind != "" {
		within("SELECT source, process_instance_key FROM flow.incidents WHERE error_type = " + quote(kind))
	}
	if a.Value("variant") != "" {
		within(a.chosen().ofVariant(a.who))
	}
	if text != "" {
		all = append(all, a.ofText(text))
	}
	return a.instancesOf(all)
}

// instancesOf are the instances whose rows match all conditions.
func (a *asked) instancesOf(all []string) string {
	return "SELECT *, instance AS key, ifNull(started, noticed) AS began, multiIf(reached = 4, 'CANCELED', reached = 3, 'COMPLETED', reached = 5, 'EXPIRED', 'ACTIVE') AS state, length(raised) AS incidents\n    FROM\n    (" +
		fill(instancesOf, "rows", strings.Join(append(all, "1"), " AND "), "tenants", a.who.only("tenant")) + ")"
}

// atElement selects instances by an element.
func (a *asked) atElement(element string) string {
	c := a.chosen()
	switch a.Value("at") {
	case "now":
		return c.present(a.who, "source, instance", " AND id = "+quote(element))
	case "incident":
		return "SELECT source, process_instance_key FROM flow.v_incidents WHERE open AND element_id = " + quote(element)
	}
	return "SELECT source, process_instance_key FROM flow.element_instances WHERE element_id = " + quote(element) + " AND state > 0"
}

// ofInstance are conditions on the columns of instancesOf.
func (a *asked) ofInstance() (all []string) {
	add := func(is bool, format string, args ...any) {
		if is {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	add(a.Value("incident") == "open", "open > 0")
	add(a.Value("incident") == "had", "notEmpty(raised)")
	add(a.Value("incident") == "trouble", "(notEmpty(raised) OR reached = 4)")
	add(a.Value("at") == "now", "reached < 3")
	now := moment(a.who.at)
	for name, condition := range map[string]string{"min": "ifNull(took_ms, dateDiff('millisecond', began, %s)) >= %d", "max": "ifNull(took_ms, dateDiff('millisecond', began, %s)) < %d", "quiet": "seen < %s - toIntervalMillisecond(%d)"} {
		d, _ := duration(a.Value(name)) // Check has rejected invalid ones
		add(a.Value(name) != "", condition, now, d.Milliseconds())
	}
	add(a.Value("bar") != "", "toInt8(floor(2 * log2(greatest(assumeNotNull(took_ms), 1)))) = toInt8(%s) AND took_ms IS NOT NULL", a.Value("bar"))
	if process := a.Value("caller"); process != "" {
		began := "1"
		if !a.Anytime() {
			began = a.Window.within("started_at")
		}
		add(true, "(source, toString(caller)) GLOBAL IN (SELECT source, instance FROM (%s) WHERE process = %s)", callers(began, a.who.only("tenant")), quote(process))
	}
	add(a.Value("called") != "", "caller = toInt64OrZero(%s)", quote(a.Value("called")))
	return all
}

var nameValue = regexp.MustCompile(`^\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*=\s*(.*?)\s*$`)

// clue is SQL that finds instances by a text, with the columns source, instance and why.
type clue string

// ofText finds instances by a search text: the key of the instance or of a record in it,
// the business key, the value of a variable, or an error message.
func (a *asked) ofText(text string) string {
	if m := nameValue.FindStringSubmatch(text); m != nil {
		return key + " GLOBAL IN\n        (SELECT source, instance FROM (" + string(a.withVariable(m[1], m[2])) + "))"
	}
	keys := "process_instance_key = $text OR " + found("business_key = concat('~', $text) OR substring(business_key, 37) = $text")
	if onlyDigits.MatchString(text) {
		keys += " OR " + key + " GLOBAL IN (SELECT source, process_instance_key FROM flow.records WHERE key = $number AND $tenants LIMIT 10)"
		return "(" + fill(keys, "text", quote(text), "number", text, "tenants", a.who.only("tenant_id")) + ")"
	}
	for _, c := range a.clues(text) {
		keys += " OR " + key + " GLOBAL IN (SELECT source, instance FROM (" + string(c) + "))"
	}
	return "(" + strings.ReplaceAll(keys, "$text", quote(text)) + ")"
}

// clues search for a text within variables and error messages.
func (a *asked) clues(text string) []clue {
	return []clue{a.withVariable("", text), a.withError(text)}
}

// withVariable searches values of variables. Values have no index, so it reads only
// instances that began in the window.
func (a *asked) withVariable(name, value string) clue {
	condition := fmt.Sprintf("(position(created, %s) > 0 OR position(updated, %[1]s) > 0)", quote(value))
	if name != "" {
		condition = "name = " + quote(name) + " AND " + condition
	}
	seed := a.Window.within("started_at")
	if a.Anytime() {
		seed = "1"
	}
	return clue(fmt.Sprintf(`SELECT source, process_instance_key AS instance, concat(name, ' = ', substring(if(updated = '', created, substring(updated, 37)), 1, 120)) AS why
    FROM flow.variables
    WHERE %s AND %s AND (source, process_instance_key) GLOBAL IN (SELECT source, process_instance_key FROM flow.process_instances WHERE %s)
    LIMIT 100000`, condition, a.who.only("tenant_id"), seed))
}

// withError searches error messages of incidents and failed jobs in the window.
func (a *asked) withError(text string) clue {
	return clue(fmt.Sprintf(`SELECT source, process_instance_key AS instance, concat(if(error_type = '', '', concat(error_type, ': ')), substring(error_message, 1, 160)) AS why
    FROM flow.records
    WHERE value_type IN ('JOB', 'INCIDENT') AND record_type = 'EVENT' AND intent IN ('FAILED', 'ERROR_THROWN', 'CREATED') AND %s AND %s
        AND positionCaseInsensitive(concat(error_type, ' ', error_message), %s) > 0
    LIMIT 100000`, a.Window.within("ts"), a.who.only("tenant_id"), quote(text)))
}

// why is the reason each instance of a page matched the search text.
func (s *Server) why(ctx context.Context, a *asked, rows answer) map[string]string {
	text := a.Value("q")
	if text == "" || len(rows.Rows) == 0 {
		return nil
	}
	all, clues := map[string]string{}, a.clues(text)
	if m := nameValue.FindStringSubmatch(text); m != nil {
		clues = []clue{a.withVariable(m[1], m[2])}
	} else if onlyDigits.MatchString(text) {
		clues = nil
	}
	p := listPage{asked: a, Answer: rows}
	for _, row := range rows.Rows {
		cells := p.cells(row)
		reason := "key of a record"
		switch text {
		case cells["instance"].Text:
			reason = "instance key"
		case cells["business_key"].Text:
			reason = "business key"
		}
		all[cells["source"].Text+" "+cells["instance"].Text] = reason
	}
	for _, c := range clues {
		type because struct{ Source, Instance, Why string }
		for _, found := range rowsOf[because](ctx, s.db, "SELECT source, instance, any(why) FROM ("+string(c)+") GROUP BY source, instance LIMIT 100000").Rows {
			if _, shown := all[found.Source+" "+found.Instance]; shown {
				all[found.Source+" "+found.Instance] = found.Why
			}
		}
	}
	return all
}

// elementRows are the executions of elements that heatSQL counts.
func (a *asked) elementRows() string {
	c := a.chosen()
	keys, within := []string{"1"}, "1"
	if c.Source != "" {
		keys = append(keys, "source = "+quote(c.Source))
	}
	if c.Process != "" && c.Process != emptyValue {
		keys[0] += elementsIn(c.Process)
	}
	if c.Variant != "" {
		keys = append(keys, key+" GLOBAL IN\n        ("+c.ofVariant(a.who)+")")
	}
	switch instance := a.Value("instance"); {
	case a.only != "":
		keys = []string{a.only}
	case instance != "":
		keys = append(keys, "process_instance_key = "+quote(instance))
	case !a.Anytime():
		within = a.Window.within("entered_at")
	case a.Value("state") == "ACTIVE":
		keys = append(keys, activeElements)
	}
	return fill(`SELECT source, instance, element AS key, tenant, process, process_version, id AS element, type, ['ACTIVE', 'COMPLETED', 'TERMINATED'][greatest(reached, 2) - 1] AS state,
        entered AS began, ifNull(activated, entered) AS since, coalesce(completed, terminated) AS ended,
        dateDiff('millisecond', since, coalesce(ended, if(reached < 3, greatest(since, $now), NULL))) AS took_ms
    FROM
    ($elements)
    WHERE type != 'PROCESS' AND reached > 0 AND $tenants`, "now", moment(a.who.at), "tenants", a.who.only("tenant"), "elements", fill(elementsOf, "keys", strings.Join(keys, " AND "), "within", within))
}
