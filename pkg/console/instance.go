package console

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// instanceRow is a process instance.
type instanceRow struct {
	Source, Key, Tenant, Process string
	Version, Definition          int64
	Caller, CallerElement        int64 // -1: not called by another instance
	Reached                      uint8
	Started, Ended               *time.Time
	Noticed, Seen                *time.Time // first and last event
	Raised, Open                 uint64     // incidents
}

const instanceColumns = `source, instance, tenant, process, process_version, definition, caller, caller_element, reached, started, ended, noticed, seen, length(raised) AS raised_incidents, toUInt64(open) AS open_incidents`

// State is that of v_process_instances, or INCIDENT for an active instance with an open incident of its own.
func (i instanceRow) State() string {
	switch {
	case i.Reached == 4:
		return "CANCELED"
	case i.Reached == 3:
		return "COMPLETED"
	case i.Reached == 5:
		return "EXPIRED"
	case i.Open > 0:
		return "INCIDENT"
	}
	return "ACTIVE"
}

// Took is the duration until its end, or until now.
func (i instanceRow) Took(now time.Time) time.Duration { return lasting(i.Started, i.Ended, now) }

func lasting(begun, ended *time.Time, now time.Time) time.Duration {
	switch {
	case begun == nil:
		return 0
	case ended != nil:
		return ended.Sub(*begun)
	}
	return max(0, now.Sub(*begun))
}

func (i instanceRow) Path() string { return link("/instance", "source", i.Source, "key", i.Key) }

// To links to a list restricted to the instance.
func (i instanceRow) To(path string, pairs ...string) string {
	return link(path, append([]string{"source", i.Source, "instance", i.Key}, pairs...)...)
}

func (i instanceRow) ProcessPath() string {
	return link("/process", "source", i.Source, "id", i.Process, "version", itoa(i.Version))
}

// stepRow is one element instance.
type stepRow struct {
	Key, Scope int64
	ID, Type   string
	Reached    uint8
	Entered    *time.Time
	Ended      *time.Time

	Depth     int
	Jobs      []spanRow
	Incidents []spanRow
}

func (s stepRow) State() string {
	return [...]string{"MIGRATED", "ACTIVATING", "ACTIVE", "COMPLETED", "TERMINATED"}[min(s.Reached, 4)]
}

// spanRow is a job, incident, user task, timer, message subscription, or decision.
type spanRow struct {
	Kind, Name, Element string
	Key, ElementKey     int64
	State, Note         string
	From, To            *time.Time
	Count               uint32 // failures

	History []recordRow // events of a job
}

// Took is the duration until its end, or until now.
func (s spanRow) Took(now time.Time) time.Duration { return lasting(s.From, s.To, now) }

// Due is the due date of a timer, which spansSQL puts into Name.
func (s spanRow) Due() *time.Time {
	if s.Kind != "timer" {
		return nil
	}
	due, err := time.Parse("2006-01-02 15:04:05.999999999", s.Name)
	if err != nil {
		return nil
	}
	return &due
}

type variableRow struct {
	Name, Value string // its first 2000 characters
	Size        uint64 // bytes of the whole value
	Scope       int64
	CreatedAt   *time.Time
	UpdatedAt   *time.Time
	Updates     uint64

	Key int64

	ScopeID string      // element id of the scope
	History []recordRow // its values, from the first maxRecords records of the instance
}

// Cut reports whether Value is truncated.
func (v variableRow) Cut() bool { return uint64(len(v.Value)) < v.Size }

type recordRow struct {
	At                                    time.Time
	Partition, Position, Key              int64
	ID, Kind, Type, Intent, Element, Note string
}

type instancePage struct {
	Row       instanceRow
	Steps     section[stepRow]
	Spans     section[spanRow]
	Variables section[variableRow]
	Tree      section[treeRow]
	Records   section[recordRow]
	More      bool // more records exist than are shown
	Gantt     drawing
	Below     section[belowRow]
	Operate   string // URL of its page in Operate; empty: none
	Diagram   string // path of its XML; empty: none
	Marks     map[string]mark
	Now       time.Time
}

// mark is the overlay of an element in the diagram.
type mark struct {
	State string `json:"state"` // done, active, stuck or ended
	Count int    `json:"count"`
	Open  int    `json:"open"` // incidents
}

func (s *Server) instance(w http.ResponseWriter, r *http.Request, who *session) error {
	source, key := r.FormValue("source"), r.FormValue("key")
	row, err := s.oneInstance(r.Context(), who, source, key)
	switch {
	case err != nil:
		return err
	case row == nil:
		return refuse(http.StatusNotFound, "Instance %q of source %q does not exist, or your token cannot read it.", key, source)
	}
	page := s.instanceData(r.Context(), who, *row)
	if s.cfg.Operate != "" {
		page.Operate = strings.TrimSuffix(s.cfg.Operate, "/") + "/processes/" + row.Key
	}
	return s.show(w, r, who, "instance", row.Process+" "+row.Key, page)
}

// oneInstance returns nil when the instance does not exist.
func (s *Server) oneInstance(ctx context.Context, who *session, source, key string) (*instanceRow, error) {
	found := rowsOf[instanceRow](ctx, s.db, oneInstanceSQL(who, source, key))
	if found.Err != nil || len(found.Rows) == 0 {
		return nil, found.Err
	}
	return &found.Rows[0], nil
}

func oneInstanceSQL(who *session, source, key string) string {
	return "SELECT " + instanceColumns + "\nFROM\n(\n    " + fill(instancesOf, "rows", "source = "+quote(source)+" AND process_instance_key = "+quote(key), "tenants", who.only("tenant")) + "\n)"
}

const stepsSQL = `
SELECT element, ifNull(scope, -1), id, type, reached, entered, coalesce(completed, terminated)
FROM
(
    $elements
)
WHERE reached > 0 AND $tenants
ORDER BY entered, element
LIMIT 1000`

const spansSQL = `
SELECT 'job' AS kind, job_type AS name, element_id, key, ifNull(element_instance_key, -1) AS element_key, state,
    if(worker = '', '', concat('worker ', worker, ', ')) || toString(ifNull(retries, 0)) || ' retries left' AS note,
    created_at AS begun, if(open, NULL, last_seen) AS ended, toUInt32(failures) AS times_failed
FROM flow.v_jobs WHERE $of
UNION ALL
SELECT 'incident', error_type, element_id, key, ifNull(element_instance_key, -1), if(open, 'OPEN', 'RESOLVED'), substringUTF8(error_message, 1, 2000), created_at, resolved_at, toUInt32(0)
FROM flow.v_incidents WHERE $of
UNION ALL
SELECT 'user task', if(assignee = '', 'unassigned', assignee), element_id, key, ifNull(element_instance_key, -1), state, arrayStringConcat(candidate_groups, ', '), created_at, coalesce(completed_at, canceled_at), toUInt32(0)
FROM flow.v_user_tasks WHERE $of
UNION ALL
SELECT 'timer', toString(due_at), element_id, key, ifNull(element_instance_key, -1), state, '', created_at, coalesce(triggered_at, canceled_at), toUInt32(0)
FROM flow.v_timers WHERE $of
UNION ALL
SELECT 'message', message_name, element_id, key, ifNull(element_instance_key, -1), state, concat('for ', correlation_key), created_at, coalesce(correlated_at, deleted_at), toUInt32(0)
FROM flow.v_message_waits WHERE $of
UNION ALL
SELECT 'decision', decision_id, element_id, key, ifNull(element_instance_key, -1), state, substringUTF8(if(failure = '', output, failure), 1, 2000), evaluated_at, evaluated_at, toUInt32(0)
FROM flow.v_decisions WHERE $of`

const variablesSQL = `
SELECT name, substringUTF8(value, 1, 2000) AS beginning, length(value) AS size, ifNull(scope_key, -1) AS scope, created_at, updated_at, changes, key
FROM flow.v_variables
WHERE $of
ORDER BY name, scope_key
LIMIT 500`

// maxRecords is the number of records that the page of an instance shows.
const maxRecords = 1000

const recordsSQL = `
SELECT ts, partition_id, position, key, id, record_type, value_type, intent, element_id,
    substringUTF8(concat(if(value_type = 'JOB' AND retries >= 0, concat(toString(retries), ' retries left, '), ''), multiIf(error_message != '', error_message, rejection_reason != '', rejection_reason, job_type != '', concat(job_type, if(worker = '', '', ' by '), worker),
        value_type = 'VARIABLE', concat(JSONExtractString(extra, 'name'), ' = ', JSONExtractString(extra, 'value')),
        value_type = 'PROCESS_INSTANCE_MIGRATION', concat('to the definition ', JSONExtractRaw(extra, 'targetProcessDefinitionKey'), arrayStringConcat(arrayMap(m -> concat(', ', m.1, ' → ', m.2), JSONExtract(extra, 'mappingInstructions', 'Array(Tuple(sourceElementId String, targetElementId String))')))),
        value_type = 'PROCESS_INSTANCE_MODIFICATION', concat('activated: ', arrayStringConcat(JSONExtract(extra, 'activateInstructions', 'Array(Tuple(elementId String))').1, ', '), '; terminated: ', arrayStringConcat(arrayMap(t -> toString(t), JSONExtract(extra, 'terminateInstructions', 'Array(Tuple(elementInstanceKey Int64))').1), ', ')),
        bpmn_element_type)), 1, 500) AS note
FROM flow.v_records
WHERE $of AND toDate(ts) BETWEEN toDate('$first') AND toDate('$last')
ORDER BY ts, partition_id, position
LIMIT $limit`

// instanceData reads all sections in parallel.
func (s *Server) instanceData(ctx context.Context, who *session, row instanceRow) *instancePage {
	p := &instancePage{Row: row, Now: who.at}
	of := fmt.Sprintf("source = %s AND process_instance_key = %s", quote(row.Source), quote(row.Key))
	visible := of + " AND " + who.only("tenant_id")
	var g errgroup.Group
	g.SetLimit(4) // leaves connections for other pages
	read := func(do func()) { g.Go(func() error { do(); return nil }) }
	read(func() {
		p.Steps = rowsOf[stepRow](ctx, s.db, fill(stepsSQL, "elements", fill(elementsOf, "keys", of, "within", "1"), "tenants", who.only("tenant")))
	})
	read(func() { p.Spans = rowsOf[spanRow](ctx, s.db, fill(spansSQL, "of", visible)) })
	read(func() { p.Variables = rowsOf[variableRow](ctx, s.db, fill(variablesSQL, "of", visible)) })
	read(func() {
		p.Tree = s.tree(ctx, who, row)
		p.Below = s.below(ctx, who, row, p.Tree.Rows)
	})
	read(func() { p.Records = s.records(ctx, row, visible) })
	read(func() { p.Diagram = s.diagramPath(ctx, row) })
	_ = g.Wait() // each section has its own error
	if len(p.Records.Rows) > maxRecords {
		p.Records.Rows, p.More = p.Records.Rows[:maxRecords], true
	}
	p.finish()
	return p
}

// records reads one record more than is shown, to detect that more exist.
func (s *Server) records(ctx context.Context, row instanceRow, of string) section[recordRow] {
	first, last := "1970-01-02", "2149-06-06"
	if row.Noticed != nil {
		first = row.Noticed.UTC().AddDate(0, 0, -1).Format(time.DateOnly)
	}
	if row.Ended != nil && row.Seen != nil {
		last = row.Seen.UTC().AddDate(0, 0, 1).Format(time.DateOnly)
	}
	return rowsOf[recordRow](ctx, s.db, fill(recordsSQL, "of", of, "first", first, "last", last, "limit", strconv.Itoa(maxRecords+1)))
}

// diagramPath is the path of the XML of the instance's definition.
func (s *Server) diagramPath(ctx context.Context, row instanceRow) string {
	var found uint64
	sql := fmt.Sprintf("SELECT count() FROM flow.process_definitions WHERE source = %s AND key = %d AND xml != ''", quote(row.Source), row.Definition)
	if err := one(ctx, s.db, []any{&found}, sql); err != nil || found == 0 {
		return ""
	}
	return definitionPath(row.Source, row.Definition)
}

func definitionPath(source string, key int64) string {
	return link("/definition", "source", source, "key", itoa(key))
}

// finish joins the sections: jobs and incidents to steps, history to jobs and variables.
func (p *instancePage) finish() {
	spans := p.Spans.Rows
	slices.SortStableFunc(spans, func(a, b spanRow) int { return compareTimes(a.From, b.From) })
	at := map[int64]int{}
	p.Marks = map[string]mark{}
	for i := range p.Steps.Rows {
		step := &p.Steps.Rows[i]
		at[step.Key] = i
		if above, ok := at[step.Scope]; ok {
			step.Depth = p.Steps.Rows[above].Depth + 1
		}
		if step.Type == "PROCESS" {
			continue
		}
		m := p.Marks[step.ID]
		m.Count++
		switch {
		case step.Reached < 3:
			m.State = "active"
		case m.State == "" || m.State == "ended":
			m.State = [...]string{"done", "ended"}[step.Reached-3]
		}
		p.Marks[step.ID] = m
	}
	for _, span := range spans {
		i, ok := at[span.ElementKey]
		switch {
		case !ok:
		case span.Kind == "incident":
			p.Steps.Rows[i].Incidents = append(p.Steps.Rows[i].Incidents, span)
		case span.Kind != "decision":
			p.Steps.Rows[i].Jobs = append(p.Steps.Rows[i].Jobs, span)
		}
		if m := p.Marks[span.Element]; span.Kind == "incident" && span.State == "OPEN" {
			m.Open++
			m.State = "stuck"
			p.Marks[span.Element] = m
		}
	}
	history := map[int64][]recordRow{}
	for _, r := range p.Records.Rows {
		if r.Kind == "EVENT" && (r.Type == "JOB" || r.Type == "VARIABLE") {
			history[r.Key] = append(history[r.Key], r)
		}
	}
	for i := range spans {
		if spans[i].Kind == "job" {
			spans[i].History = history[spans[i].Key]
		}
	}
	for i := range p.Variables.Rows {
		p.Variables.Rows[i].History = history[p.Variables.Rows[i].Key]
		if step, ok := at[p.Variables.Rows[i].Scope]; ok {
			p.Variables.Rows[i].ScopeID = p.Steps.Rows[step].ID
		}
	}
	for _, r := range p.Records.Rows {
		if r.Intent == "SEQUENCE_FLOW_TAKEN" {
			m := p.Marks[r.Element]
			m.Count++
			m.State = "done"
			p.Marks[r.Element] = m
		}
	}
	p.Gantt = drawGantt(p.Steps.Rows, p.Now)
}

func compareTimes(a, b *time.Time) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return a.Compare(*b)
}

// belowRow is an incident of an instance below this one in the call tree.
type belowRow struct {
	Instance, Process, Name, Element, State, Note string
	From, To                                      *time.Time
}

// Took is the duration until its end, or until now.
func (b belowRow) Took(now time.Time) time.Duration { return lasting(b.From, b.To, now) }

// below reads the incidents of all instances below this one in the call tree.
func (s *Server) below(ctx context.Context, who *session, row instanceRow, tree []treeRow) section[belowRow] {
	var keys []string
	here := false
	for _, t := range tree {
		if here && t.Raised > 0 {
			keys = append(keys, quote(t.Key))
		}
		here = here || t.Here
	}
	if len(keys) == 0 {
		return section[belowRow]{}
	}
	return rowsOf[belowRow](ctx, s.db, fill(`SELECT process_instance_key, bpmn_process_id, error_type, element_id, if(open, 'OPEN', 'RESOLVED') AS state, substringUTF8(error_message, 1, 2000) AS said, created_at, resolved_at
FROM flow.v_incidents
WHERE source = $source AND process_instance_key IN ($keys) AND $tenants
ORDER BY open DESC, created_at
LIMIT 200`, "source", quote(row.Source), "keys", strings.Join(keys, ", "), "tenants", who.only("tenant_id")))
}

// Operations are the migrations and modifications of the instance.
func (p *instancePage) Operations() (all []recordRow) {
	for _, r := range p.Records.Rows {
		if r.Kind == "EVENT" && (r.Type == "PROCESS_INSTANCE_MIGRATION" || r.Type == "PROCESS_INSTANCE_MODIFICATION") {
			all = append(all, r)
		}
	}
	return all
}

// Of are the spans of some kinds.
func (p *instancePage) Of(kinds ...string) (all []spanRow) {
	for _, s := range p.Spans.Rows {
		if slices.Contains(kinds, s.Kind) {
			all = append(all, s)
		}
	}
	return all
}

// definition serves the XML of a definition, for the diagram.
func (s *Server) definition(w http.ResponseWriter, r *http.Request, who *session) error {
	key, err := strconv.ParseInt(r.FormValue("key"), 10, 64)
	if err != nil {
		return refuse(http.StatusBadRequest, "The definition key %q is not a number.", r.FormValue("key"))
	}
	var xml string
	sql := fmt.Sprintf("SELECT xml FROM flow.v_process_definitions WHERE source = %s AND process_definition_key = %d AND %s",
		quote(r.FormValue("source")), key, who.theirs(r.FormValue("source")))
	if err := one(r.Context(), s.db, []any{&xml}, sql); err != nil {
		return err
	}
	if xml == "" {
		return refuse(http.StatusNotFound, "Definition %d has no diagram.", key)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8") // so that no browser renders it as a page
	_, _ = w.Write([]byte(xml))                                 // fails only when the browser has disconnected
	return nil
}

// theirs is a condition on the definitions visible to a session: those of its tenants,
// and those of its tenants' instances.
func (s *session) theirs(source string) string {
	if !s.Limited() {
		return "1"
	}
	return fmt.Sprintf("(%s OR process_definition_key GLOBAL IN (SELECT assumeNotNull(process_definition_key) FROM flow.process_instances WHERE source = %s AND %s))",
		s.only("tenant_id"), quote(source), s.only("tenant_id"))
}
