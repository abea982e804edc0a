package warehouse

import (
	"context"
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

//go:embed questions.sql
var questionsFile string

//go:embed lint.sql
var lintFile string

// Question is something that analysts ask, with the statement that answers it.
type Question struct {
	Name       string // such as durations
	Asks       string // in words
	Means      string // what the answer says, and what it leaves out; may be empty
	Do         string // of Checks: what to do about what is found
	SQL        string // one SELECT over the views of the database flow, without a semicolon
	Parameters []Parameter
	Reads      []string // views and tables, without the database
}

// Parameter is what a statement has as {name:Type}.
type Parameter struct {
	Name    string
	Type    string // of ClickHouse
	Means   string
	Example string // as ClickHouse takes a value by HTTP
}

var (
	parameterLine = regexp.MustCompile(`^parameter (\w+) = (.*?): (.+)$`)
	exampleLine   = regexp.MustCompile(`^example (\w+)=(.*)$`)
	placeholder   = regexp.MustCompile(`\{(\w+):([^}]+)\}`)
	readsFrom     = regexp.MustCompile(`\bflow\.(\w+)`)
)

// Questions are all of questions.sql, in its order.
func Questions() ([]Question, error) { return parseQuestions(questionsFile) }

// Checks are all of lint.sql: each has a line for every engine that something
// is found of, with the columns source, findings and example.
func Checks() ([]Question, error) { return parseQuestions(lintFile) }

func parseQuestions(file string) ([]Question, error) {
	head, rest, _ := strings.Cut(file, "\n-- question ")
	parameters := map[string]Parameter{}
	for line := range strings.Lines(head) {
		if m := parameterLine.FindStringSubmatch(comment(line)); m != nil {
			parameters[m[1]] = Parameter{Name: m[1], Means: m[3], Example: m[2]}
		}
	}
	var all []Question
	for text := range strings.SplitSeq(rest, "\n-- question ") {
		q, err := parseQuestion(text, parameters)
		if err != nil {
			return nil, err
		}
		all = append(all, q)
	}
	return all, nil
}

// parseQuestion reads what stands behind "-- question ".
func parseQuestion(text string, parameters map[string]Parameter) (Question, error) {
	title, text, _ := strings.Cut(text, "\n")
	name, asks, named := strings.Cut(title, ": ")
	if !named {
		return Question{}, fmt.Errorf("questions: %q is no question with a name", title)
	}
	q := Question{Name: name, Asks: asks}
	examples := map[string]string{}
	for strings.HasPrefix(text, "--") {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		if m := exampleLine.FindStringSubmatch(comment(line)); m != nil {
			examples[m[1]] = m[2]
			continue
		}
		if do, ok := strings.CutPrefix(comment(line), "do: "); ok {
			q.Do = do
			continue
		}
		q.Means = strings.TrimSpace(q.Means + " " + comment(line))
	}
	statement, closed := strings.CutSuffix(strings.TrimSpace(text), ";")
	if !closed || strings.Contains(statement, ";") {
		return Question{}, fmt.Errorf("questions: %s is not one statement that ends with a semicolon", name)
	}
	q.SQL = statement
	for _, m := range placeholder.FindAllStringSubmatch(statement, -1) {
		if slices.ContainsFunc(q.Parameters, func(p Parameter) bool { return p.Name == m[1] }) {
			continue
		}
		p, known := parameters[m[1]]
		if !known {
			return Question{}, fmt.Errorf("questions: %s has the parameter %s, which the head does not explain", name, m[1])
		}
		p.Type = m[2]
		if example, ok := examples[p.Name]; ok {
			p.Example = example
		}
		q.Parameters = append(q.Parameters, p)
	}
	for _, m := range readsFrom.FindAllStringSubmatch(statement, -1) {
		if !slices.Contains(q.Reads, m[1]) {
			q.Reads = append(q.Reads, m[1])
		}
	}
	return q, nil
}

// With is the statement with a value in the place of each parameter: its
// example where values has none. It is for programs that ask by text alone.
func (q Question) With(values map[string]string) string {
	literal := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	return placeholder.ReplaceAllStringFunc(q.SQL, func(hole string) string {
		name := placeholder.FindStringSubmatch(hole)[1]
		i := slices.IndexFunc(q.Parameters, func(p Parameter) bool { return p.Name == name })
		value, given := values[name]
		if !given {
			value = q.Parameters[i].Example
		}
		return "CAST('" + literal.Replace(value) + "', '" + literal.Replace(q.Parameters[i].Type) + "')"
	})
}

// comment is what a line of comment says.
func comment(line string) string {
	return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "--"))
}

// Finding is something that a check has found of one engine.
type Finding struct {
	Check   string `json:"check"`   // name of the check, such as rounded_keys
	Asks    string `json:"finding"` // in words
	Source  string `json:"source"`
	Count   uint64 `json:"count"`
	Example string `json:"example"`
	Do      string `json:"do"`
	SQL     string `json:"sql"`
}

// Lint makes every check of lint.sql.
func (db *DB) Lint(ctx context.Context) ([]Finding, error) {
	checks, err := Checks()
	if err != nil {
		return nil, err
	}
	var all []Finding
	for _, c := range checks {
		found, err := db.check(ctx, c)
		if err != nil {
			return all, fmt.Errorf("check %s: %w", c.Name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

func (db *DB) check(ctx context.Context, c Question) ([]Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.QueryTimeout)
	defer cancel()
	sql := strings.ReplaceAll(c.SQL, "flow.", db.name+".")
	rows, err := db.queries.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []Finding
	for rows.Next() {
		f := Finding{Check: c.Name, Asks: c.Asks, Do: c.Do, SQL: sql}
		if err := rows.Scan(&f.Source, &f.Count, &f.Example); err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, rows.Err()
}

// Selection says which process instances an export is about: those that were
// started in a time. An instance is in one such time only, so that an export
// can be made in pieces.
type Selection struct {
	Process string    // BPMN process id that they have now; empty for all
	Tenant  string    // empty for all
	Source  string    // empty for all
	From    time.Time // the first moment; zero for the beginning
	To      time.Time // the moment after the last one; zero for no end
}

// where are the conditions on v_process_instances.
func (s Selection) where() string {
	var c conditions
	c.add("started_at IS NOT NULL")
	if !s.From.IsZero() {
		c.add("started_at >= fromUnixTimestamp64Milli(%d, 'UTC')", ceilMilli(s.From))
	}
	if !s.To.IsZero() {
		c.add("started_at < fromUnixTimestamp64Milli(%d, 'UTC')", ceilMilli(s.To))
	}
	for _, of := range []struct{ column, value string }{{"bpmn_process_id", s.Process}, {"tenant_id", s.Tenant}, {"source", s.Source}} {
		if of.value != "" {
			c.add("%s = %s", of.column, quote(of.value))
		}
	}
	return c.String()
}

// ceilMilli is the first millisecond that is not before a time.
func ceilMilli(t time.Time) int64 { return t.Add(time.Millisecond - 1).UnixMilli() }

// Case is a process instance and all that happened in it.
type Case struct {
	Source, Key  string
	Tenant       string
	Process      string // that it belongs to now
	Version      *int64
	Definition   *int64 // key of that version
	Parent       *int64 // instance that called it
	Called       bool   // by an instance that is selected too; only in details
	StartedAt    time.Time
	CompletedAt  *time.Time
	TerminatedAt *time.Time
	State        string // as in v_process_instances

	Elements  []CaseElement // in the order of their keys, which is the one they were entered in
	Jobs      []CaseJob
	UserTasks []CaseUserTask
	Incidents []CaseIncident // only in details
}

// CaseElement is an element instance; the process is one too.
type CaseElement struct {
	Key          int64
	Element      string // id in the BPMN model
	Type         string // bpmnElementType
	FlowScope    *int64
	ActivatedAt  *time.Time
	CompletedAt  *time.Time
	TerminatedAt *time.Time
	State        string
}

// CaseJob is a job.
type CaseJob struct {
	Key             int64
	ElementInstance *int64
	Type            string
	State           string
	Worker          string
	Retries         *int64
	Failures        uint32
	CreatedAt       *time.Time
	CompletedAt     *time.Time
	CanceledAt      *time.Time
}

// CaseUserTask is a user task of the engine.
type CaseUserTask struct {
	Key             int64
	ElementInstance *int64
	Assignee        string
	State           string
	CreatedAt       *time.Time
	AssignedAt      *time.Time
	CompletedAt     *time.Time
	CanceledAt      *time.Time
}

// CaseIncident is an incident.
type CaseIncident struct {
	Key             int64
	ElementInstance *int64
	Job             *int64
	ErrorType       string
	ErrorMessage    string
	CreatedAt       *time.Time
	ResolvedAt      *time.Time
}

// Definition is a deployed version of a process.
type Definition struct {
	Source     string
	Key        int64
	Process    string
	Version    *int64
	Name       string
	DeployedAt *time.Time
}

// casesAtOnce is how many instances are read together. More are, when they were
// started in the same millisecond.
const casesAtOnce = 500

// sortInMemory is how much of the selection the server sorts in memory; the
// rest goes to its disk.
const sortInMemory = 256 << 20

// CountCases counts the instances of a selection.
func (db *DB) CountCases(ctx context.Context, s Selection) (n uint64, err error) {
	return n, db.row(ctx, "count instances", fmt.Sprintf("SELECT count() FROM %s.v_process_instances WHERE %s", db.name, s.where()), nil, &n)
}

// Cases reads the instances of a selection in the order in which they were
// started, some hundred at once, however many there are. Of two calls the
// second one's instances were all started later than the first one's, so that
// a caller that stops after any call can go on from there.
func (db *DB) Cases(ctx context.Context, s Selection, details bool, each func([]*Case) error) error {
	var batch []*Case
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		if err := db.fill(ctx, s, batch, details); err != nil {
			return err
		}
		err := each(batch)
		batch = batch[:0:0]
		return err
	}
	// One statement for all: to ask anew from where the last page ended would
	// read the whole table for each. Rows come as fast as they are taken.
	ctx = clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{"max_bytes_before_external_sort": sortInMemory, "max_block_size": 8192}))
	err := db.eachUntil(ctx, "read instances", fmt.Sprintf(
		`SELECT source, process_instance_key, tenant_id, bpmn_process_id, version, process_definition_key, parent_process_instance_key,
			assumeNotNull(started_at), completed_at, terminated_at, state
		FROM %s.v_process_instances WHERE %s ORDER BY started_at, source, process_instance_key`, db.name, s.where()), nil,
		func(rows driver.Rows) error {
			c := new(Case)
			if err := rows.Scan(&c.Source, &c.Key, &c.Tenant, &c.Process, &c.Version, &c.Definition, &c.Parent,
				&c.StartedAt, &c.CompletedAt, &c.TerminatedAt, &c.State); err != nil {
				return err
			}
			if n := len(batch); n >= casesAtOnce && !c.StartedAt.Equal(batch[n-1].StartedAt) {
				if err := flush(); err != nil {
					return err
				}
			}
			batch = append(batch, c)
			return nil
		})
	if err != nil {
		return err
	}
	return flush()
}

// fill reads what happened in the instances.
func (db *DB) fill(ctx context.Context, s Selection, batch []*Case, details bool) error {
	type place struct{ source, key string }
	at := map[place]*Case{}
	keys := make([]string, len(batch))
	for i, c := range batch {
		at[place{c.Source, c.Key}] = c
		keys[i] = "(" + quote(c.Source) + ", " + quote(c.Key) + ")"
	}
	among := strings.Join(keys, ", ")
	read := func(what, view, columns string, one func(rows driver.Rows, source, key *string) (func(*Case), error)) error {
		return db.each(ctx, "read "+what, fmt.Sprintf("SELECT source, process_instance_key, key, %s FROM %s.%s WHERE (source, process_instance_key) IN (%s) ORDER BY source, process_instance_key, key",
			columns, db.name, view, among), nil, func(rows driver.Rows) error {
			var source, key string
			add, err := one(rows, &source, &key)
			if c := at[place{source, key}]; err == nil && c != nil {
				add(c)
			}
			return err
		})
	}
	err := read("elements", "v_element_instances", "element_id, bpmn_element_type, flow_scope_key, activated_at, completed_at, terminated_at, state",
		func(rows driver.Rows, source, key *string) (func(*Case), error) {
			var e CaseElement
			err := rows.Scan(source, key, &e.Key, &e.Element, &e.Type, &e.FlowScope, &e.ActivatedAt, &e.CompletedAt, &e.TerminatedAt, &e.State)
			return func(c *Case) { c.Elements = append(c.Elements, e) }, err
		})
	if err != nil {
		return err
	}
	err = read("jobs", "v_jobs", "element_instance_key, job_type, state, worker, retries, toUInt32(failures), created_at, completed_at, canceled_at",
		func(rows driver.Rows, source, key *string) (func(*Case), error) {
			var j CaseJob
			err := rows.Scan(source, key, &j.Key, &j.ElementInstance, &j.Type, &j.State, &j.Worker, &j.Retries, &j.Failures, &j.CreatedAt, &j.CompletedAt, &j.CanceledAt)
			return func(c *Case) { c.Jobs = append(c.Jobs, j) }, err
		})
	if err != nil {
		return err
	}
	err = read("user tasks", "v_user_tasks", "element_instance_key, assignee, state, created_at, assigned_at, completed_at, canceled_at",
		func(rows driver.Rows, source, key *string) (func(*Case), error) {
			var u CaseUserTask
			err := rows.Scan(source, key, &u.Key, &u.ElementInstance, &u.Assignee, &u.State, &u.CreatedAt, &u.AssignedAt, &u.CompletedAt, &u.CanceledAt)
			return func(c *Case) { c.UserTasks = append(c.UserTasks, u) }, err
		})
	if err != nil || !details {
		return err
	}
	err = read("incidents", "v_incidents", "element_instance_key, job_key, error_type, error_message, created_at, resolved_at",
		func(rows driver.Rows, source, key *string) (func(*Case), error) {
			var i CaseIncident
			err := rows.Scan(source, key, &i.Key, &i.ElementInstance, &i.Job, &i.ErrorType, &i.ErrorMessage, &i.CreatedAt, &i.ResolvedAt)
			return func(c *Case) { c.Incidents = append(c.Incidents, i) }, err
		})
	if err != nil {
		return err
	}
	return db.findCallers(ctx, s, batch)
}

// findCallers finds out which instances were called by one that is selected too.
func (db *DB) findCallers(ctx context.Context, s Selection, batch []*Case) error {
	called := map[string][]*Case{}
	for _, c := range batch {
		if c.Parent != nil {
			parent := fmt.Sprintf("(%s, '%d')", quote(c.Source), *c.Parent)
			called[parent] = append(called[parent], c)
		}
	}
	if len(called) == 0 {
		return nil
	}
	var parents []string
	for parent := range called {
		parents = append(parents, parent)
	}
	return db.each(ctx, "read callers", fmt.Sprintf("SELECT source, process_instance_key FROM %s.v_process_instances WHERE (source, process_instance_key) IN (%s) AND %s",
		db.name, strings.Join(parents, ", "), s.where()), nil, func(rows driver.Rows) error {
		var source, key string
		err := rows.Scan(&source, &key)
		for _, c := range called[fmt.Sprintf("(%s, %s)", quote(source), quote(key))] {
			c.Called = true
		}
		return err
	})
}

// Definitions are the deployed versions of all processes.
func (db *DB) Definitions(ctx context.Context) (all []Definition, err error) {
	return all, db.each(ctx, "read definitions", fmt.Sprintf(
		"SELECT source, process_definition_key, bpmn_process_id, version, name, deployed_at FROM %s.v_process_definitions ORDER BY source, process_definition_key", db.name), nil,
		func(rows driver.Rows) error {
			var d Definition
			err := rows.Scan(&d.Source, &d.Key, &d.Process, &d.Version, &d.Name, &d.DeployedAt)
			all = append(all, d)
			return err
		})
}
