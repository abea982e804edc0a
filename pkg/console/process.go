package console

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
)

// chosen is the process that a page is about.
type chosen struct {
	Source, Process string
	Version         int64 // 0 is all of them
	Window          window
}

// instances are those of the process that began in the window.
func (c chosen) instances(who *session) string {
	return fill(instancesOf, "rows", c.began(), "tenants", c.mine(who))
}

// began finds the instances of the engine that began in the window.
func (c chosen) began() string {
	return "source = " + quote(c.Source) + " AND " + c.Window.within("started_at")
}

// mine leaves the instances that belong to the process now.
func (c chosen) mine(who *session) string {
	return who.only("tenant") + " AND process = " + quote(c.Process) + c.ofVersion("process_version")
}

func (c chosen) pairs() []string {
	return []string{"source", quote(c.Source), "process", quote(c.Process)}
}

func (c chosen) ofVersion(column string) string {
	if c.Version == 0 {
		return ""
	}
	return fmt.Sprintf(" AND %s = %d", column, c.Version)
}

// versionRow compares one version with the others.
type versionRow struct {
	Version                                  int64
	Instances, Active, Completed, Terminated uint64
	WithIncidents                            uint64
	P50, P95                                 *int64
	Steps                                    []int8 // of each completed instance the bar of the histogram
}

// IncidentShare is the share of the instances that had an incident.
func (v versionRow) IncidentShare() float64 {
	if v.Instances == 0 {
		return 0
	}
	return float64(v.WithIncidents) / float64(v.Instances)
}

const versionsSQL = `
SELECT process_version, countIf(begun) AS instances, countIf(reached < 3) AS active, countIf(begun AND reached = 3) AS completed,
    countIf(begun AND reached = 4) AS terminated, countIf(begun AND stopped) AS with_incidents,
    quantileExactIf(0.5)(took_ms, begun AND reached = 3) AS p50, quantileExactIf(0.95)(took_ms, begun AND reached = 3) AS p95,
    groupArrayIf(toInt8(floor(2 * log2(greatest(assumeNotNull(took_ms), 1)))), begun AND reached = 3 AND took_ms IS NOT NULL) AS steps
FROM
(
    SELECT process_version, reached, took_ms, notEmpty(raised) AS stopped, ifNull($within, 0) AS begun FROM
    ($instances)
)
GROUP BY process_version
ORDER BY process_version DESC`

// versions compares the versions, whichever of them is chosen: by the instances that began
// in the window or go on, read once.
func (s *Server) versions(ctx context.Context, who *session, c chosen) (p section[[]versionRow]) {
	c.Version = 0
	p.SQL = fill(versionsSQL, "within", c.Window.within("started"),
		"instances", fill(instancesOf, "rows", "source = "+quote(c.Source)+" AND (state < 3 OR "+c.Window.within("started_at")+")", "tenants", c.mine(who)))
	p.Rows, p.Err = each(ctx, s.db, func(r *versionRow) []any {
		return []any{&r.Version, &r.Instances, &r.Active, &r.Completed, &r.Terminated, &r.WithIncidents, &r.P50, &r.P95, &r.Steps}
	}, p.SQL)
	return p
}

// bar is a bar of the histogram of durations, which double with each second one.
type bar struct {
	Step      int8 // the duration in ms is 2^(Step/2) or more
	Instances uint64
}

// histogram counts the completed instances of a version, or of all with 0, by how
// long they took.
func histogram(versions []versionRow, version int64) (bars []bar) {
	counts := map[int8]uint64{}
	for _, v := range versions {
		for _, step := range v.Steps {
			if version == 0 || version == v.Version {
				counts[step]++
			}
		}
	}
	for _, step := range slices.Sorted(maps.Keys(counts)) {
		bars = append(bars, bar{step, counts[step]})
	}
	return bars
}

// elementRow is what has happened at an element.
type elementRow struct {
	ID, Type              string
	Executions, Completed uint64
	Terminated            uint64
	P50, P95, Total       *int64 // ms
	Active                uint64 // are there now, also of instances that began before the window
	Incidents             uint64 // created in the window
	Open                  uint64 // incidents open now
}

// Body tells whether it is what holds the turns of a multi-instance activity: who
// is there, and what is wrong there, counts with the activity.
func (e elementRow) Body() bool { return e.Type == "MULTI_INSTANCE_BODY" }

// elementsOf are the elements of instances, one row each, read without FINAL:
// what $elements finds by any of their rows.
const elementsOf = `SELECT source, process_instance_key AS instance, key AS element, splitByChar('\t', max(e.migrated)) AS moved,
        if(length(moved) < 4, max(e.element_id), moved[4]) AS id, if(length(moved) < 4, max(e.bpmn_process_id), moved[2]) AS process,
        ifNull(if(length(moved) < 4, max(e.version), toInt64OrNull(moved[3])), 0) AS process_version,
        max(e.bpmn_element_type) AS type, max(e.flow_scope_key) AS scope, max(e.state) AS reached, max(e.tenant_id) AS tenant,
        min(e.entered_at) AS entered, min(e.activated_at) AS activated, max(e.completed_at) AS completed, max(e.terminated_at) AS terminated,
        dateDiff('millisecond', activated, completed) AS took_ms
    FROM flow.element_instances AS e
    WHERE $elements
    GROUP BY source, process_instance_key, key`

// ofProcess leaves the rows of elements that lie under the process, and under those that
// instances of it were moved from or to: few processes, if any. An instance that was moved
// says so itself; one whose rows are not merged yet has a row with a migration and no
// beginning, and all its rows are looked at.
const ofProcess = `source = $source AND (bpmn_process_id IN ($process, '') OR bpmn_process_id GLOBAL IN
        (SELECT arrayJoin(processes) FROM flow.instances WHERE source = $source AND length(processes) > 1 AND has(processes, $process)
        UNION ALL
        SELECT arrayJoin(processes) FROM
            (SELECT groupUniqArrayArray(processes) AS processes FROM flow.instances
            WHERE source = $source AND process_instance_key GLOBAL IN (SELECT process_instance_key FROM flow.instances WHERE source = $source AND migrated != '' AND began = '')
            GROUP BY process_instance_key HAVING has(processes, $process))))`

// Elements are grouped by numbers alone: what, the hash of id and type, is 0 of those that
// do not count here, and their names are looked up for each what, not for each element.
// The last migration says what an element is.
const heatSQL = `
SELECT n.id AS id, n.type AS type, executions, completed, terminated, p50, p95, total
FROM
(
    SELECT what, count() AS executions, countIf(reached = 3) AS completed, countIf(reached = 4) AS terminated,
        quantileExact(0.5)(took_ms) AS p50, quantileExact(0.95)(took_ms) AS p95, sum(took_ms) AS total
    FROM
    (
        WITH splitByChar('\t', e.migrated) AS moved, $what AS one, max(e.tenant_id) AS tenant, ifNull(if(e.migrated = '', e.version, toInt64OrNull(moved[3])), 0) AS process_version,
            if(e.migrated = '', e.bpmn_process_id = $process, moved[2] = $process)$version AND e.bpmn_element_type != 'PROCESS' AS counts
        SELECT argMax(if(counts, one, 0), toUInt128OrZero(substring(e.migrated, 1, 35))) AS what,
            max(e.state) AS reached, dateDiff('millisecond', min(e.activated_at), max(e.completed_at)) AS took_ms
        FROM flow.element_instances AS e
        WHERE $of
            AND process_instance_key GLOBAL IN ($began)
        GROUP BY e.key
        HAVING what != 0 AND reached > 0 AND $tenants
    )
    GROUP BY what
) AS t
INNER JOIN
(
    WITH splitByChar('\t', e.migrated) AS moved
    SELECT $what AS what, any(if(e.migrated = '', e.element_id, moved[4])) AS id, any(e.bpmn_element_type) AS type
    FROM flow.element_instances AS e
    WHERE source = $source AND bpmn_process_id = $process
    GROUP BY what
) AS n ON n.what = t.what
ORDER BY total DESC, id, type`

// whatOf is the number of what an element is.
const whatOf = `if(e.migrated = '', cityHash64(e.element_id), cityHash64(moved[4])) + 3 * cityHash64(e.bpmn_element_type)`

// heat is what has happened at each element of the process, of the instances begun
// in the window. What an instance did before it was migrated stays where it was.
func (s *Server) heat(ctx context.Context, who *session, c chosen) (p section[[]elementRow]) {
	p.SQL = fill(heatSQL, append(c.pairs(), "what", whatOf, "of", fill(ofProcess, c.pairs()...), "began", "SELECT process_instance_key FROM flow.instances WHERE "+c.began(),
		"tenants", who.only("tenant"), "version", c.ofVersion("process_version"))...)
	p.Rows, p.Err = each(ctx, s.db, func(r *elementRow) []any {
		return []any{&r.ID, &r.Type, &r.Executions, &r.Completed, &r.Terminated, &r.P50, &r.P95, &r.Total}
	}, p.SQL)
	return p
}

// elements are those of the instances that began in the window and have belonged to
// the process; order may choose some of them. Elements lie by the processes of their
// instance, as a rule one.
func (c chosen) elements(order string) string {
	return fill(elementsOf, "elements", fill(`source = $source AND (source, bpmn_process_id, process_instance_key) GLOBAL IN
        (SELECT source, arrayJoin(processes), process_instance_key FROM
            (SELECT source, processes, process_instance_key FROM flow.instances FINAL WHERE `+c.began()+` AND has(processes, $process)`+order+`))`, c.pairs()...))
}

// Only elements of which some row of the process says that they are not left may be there.
const tokensSQL = `
SELECT id, count() AS active
FROM
(
    $elements
)
WHERE process = $process$version AND reached < 3 AND type NOT IN ('PROCESS', 'MULTI_INSTANCE_BODY') AND $tenants
GROUP BY id
ORDER BY id`

// present counts where instances are now.
func (s *Server) present(ctx context.Context, who *session, c chosen) (p section[[]elementRow]) {
	p.SQL = fill(tokensSQL, append(c.pairs(), "version", c.ofVersion("process_version"), "tenants", who.only("tenant"),
		"elements", fill(elementsOf, "elements", fill(ofProcess+`
        AND key GLOBAL IN (SELECT key FROM flow.element_instances WHERE source = $source AND bpmn_process_id = $process AND state < 3)`, c.pairs()...)))...)
	p.Rows, p.Err = each(ctx, s.db, func(r *elementRow) []any { return []any{&r.ID, &r.Active} }, p.SQL)
	return p
}

const troublesSQL = `
SELECT id, countIf(created IS NOT NULL AND $within) AS incidents, countIf(reached < 2) AS open
FROM
(
    SELECT splitByChar('\t', i.migrated) AS moved, if(i.migrated = '', i.element_id, moved[3]) AS id,
        if(i.migrated = '', i.bpmn_process_id, moved[2]) AS process, i.state AS reached, i.created_at AS created, i.tenant_id AS tenant
    FROM flow.incidents AS i FINAL
    WHERE source = $source AND process = $process AND $tenants AND (reached < 2 OR $within)
)
GROUP BY id
ORDER BY id`

// troubles counts the incidents of each element, whatever its version.
func (s *Server) troubles(ctx context.Context, who *session, c chosen) (p section[[]elementRow]) {
	p.SQL = fill(troublesSQL, append(c.pairs(), "within", c.Window.within("created"), "tenants", who.only("tenant"))...)
	p.Rows, p.Err = each(ctx, s.db, func(r *elementRow) []any { return []any{&r.ID, &r.Incidents, &r.Open} }, p.SQL)
	return p
}

// variantRow is a way that instances take.
type variantRow struct {
	Path      []string
	Instances uint64
	P50       *int64
	Sample    string // an instance
}

// lately bounds what is read of each instance's way: so many that began last.
const lately = 2000

const variantsSQL = `
SELECT path, count() AS instances, quantileExact(0.5)(took) AS p50, any(instance) AS sample
FROM
(
    SELECT instance, maxIf(took_ms, type = 'PROCESS') AS took,
        arrayCompact(arrayMap(step -> step.3, arraySort(groupArrayIf((assumeNotNull(activated), element, id), type NOT IN ('PROCESS', 'MULTI_INSTANCE_BODY') AND activated IS NOT NULL)))) AS path
    FROM
    (
        $elements
    )
    GROUP BY instance
    HAVING countIf(type = 'PROCESS' AND reached = 3 AND process = $process$version AND $tenants) > 0
)
GROUP BY path
ORDER BY instances DESC, path
LIMIT 10`

// variants are the ways of the instances that began last in the window, of those
// that have completed.
func (s *Server) variants(ctx context.Context, who *session, c chosen) (p section[[]variantRow]) {
	p.SQL = fill(variantsSQL, "elements", c.elements(fmt.Sprintf(" ORDER BY started_at DESC LIMIT %d", lately)),
		"tenants", who.only("tenant"), "process", quote(c.Process), "version", c.ofVersion("process_version"))
	p.Rows, p.Err = each(ctx, s.db, func(r *variantRow) []any { return []any{&r.Path, &r.Instances, &r.P50, &r.Sample} }, p.SQL)
	return p
}

// definitionRow is a version that was deployed.
type definitionRow struct {
	Version    int64
	Key        int64
	Name       string
	DeployedAt *time.Time
	HasXML     bool
}

const definitionsSQL = `
SELECT ifNull(version, 0) AS of_version, process_definition_key, name, deployed_at, xml != ''
FROM flow.v_process_definitions
WHERE source = $source AND bpmn_process_id = $process AND $theirs
ORDER BY of_version DESC, process_definition_key DESC`

func (s *Server) definitions(ctx context.Context, who *session, c chosen) (p section[[]definitionRow]) {
	p.SQL = fill(definitionsSQL, append(c.pairs(), "theirs", who.theirs(c.Source))...)
	p.Rows, p.Err = each(ctx, s.db, func(r *definitionRow) []any { return []any{&r.Version, &r.Key, &r.Name, &r.DeployedAt, &r.HasXML} }, p.SQL)
	return p
}

// processPage is what pages/process.html shows.
type processPage struct {
	chosen
	Versions    section[[]versionRow]
	Histogram   []bar
	Heat        section[[]elementRow]
	Tokens      section[[]elementRow]
	Troubles    section[[]elementRow]
	Variants    section[[]variantRow]
	Definitions section[[]definitionRow]
	Follows     section[[]followRow] // only without a diagram
	Definition  *definitionRow       // whose diagram is shown
	Elements    []elementRow         // heat, tokens and troubles together
}

// VersionText is the version that is chosen; empty for all of them.
func (p *processPage) VersionText() string {
	if p.Version == 0 {
		return ""
	}
	return itoa(p.Version)
}

// DiagramPath is where the XML of the diagram is.
func (p *processPage) DiagramPath() string { return definitionPath(p.Source, p.Definition.Key) }

// Deployed is when a version was deployed; nil when that is not known.
func (p *processPage) Deployed(version int64) *time.Time {
	for _, d := range p.Definitions.Rows {
		if d.Version == version {
			return d.DeployedAt
		}
	}
	return nil
}

// heatMark is what the diagram shows at an element.
type heatMark struct {
	Count     uint64 `json:"count"`
	Active    uint64 `json:"active"`
	Time      int64  `json:"time"` // ms, in all
	Incidents uint64 `json:"incidents"`
	Open      uint64 `json:"open"`
	Half      string `json:"half"` // how long half of them take
}

// HeatMarks are what the diagram shows, by element. A multi-instance body and its turns
// are one place: the turns count, the time is that of the body.
func (p *processPage) HeatMarks() map[string]heatMark {
	marks := map[string]heatMark{}
	for _, e := range p.Elements {
		m := marks[e.ID]
		if e.Type != "MULTI_INSTANCE_BODY" {
			m.Count += e.Executions
			m.Half = milliseconds(e.P50)
		}
		m.Active, m.Incidents, m.Open = m.Active+e.Active, m.Incidents+e.Incidents, m.Open+e.Open
		if e.Total != nil {
			m.Time = max(m.Time, *e.Total)
		}
		marks[e.ID] = m
	}
	return marks
}

// chosenOf reads what an address chooses.
func chosenOf(r *http.Request, now time.Time) (c chosen, err error) {
	c = chosen{Source: r.FormValue("source"), Process: r.FormValue("id"), Window: windowOf(r, now)}
	if c.Process == "" {
		return c, refuse(http.StatusBadRequest, "Which process? The address needs source and id: choose one of the list of processes.")
	}
	if text := r.FormValue("version"); text != "" {
		if c.Version, err = strconv.ParseInt(text, 10, 64); err != nil {
			return c, refuse(http.StatusBadRequest, "The version %q is no number.", text)
		}
	}
	return c, nil
}

// process is the page of one process.
func (s *Server) process(w http.ResponseWriter, r *http.Request, who *session) error {
	c, err := chosenOf(r, who.at)
	if err != nil {
		return err
	}
	page := s.processData(r.Context(), who, c)
	if page.Versions.Err == nil && len(page.Versions.Rows) == 0 && len(page.Definitions.Rows) == 0 && c.Window.Name == "all" {
		return refuse(http.StatusNotFound, "There is no process %q of the source %q.", c.Process, c.Source)
	}
	return s.show(w, r, who, "process", c.Process, page)
}

// processData reads all sections side by side.
func (s *Server) processData(ctx context.Context, who *session, c chosen) *processPage {
	p := &processPage{chosen: c}
	var g errgroup.Group
	g.SetLimit(4) // of the connections that all pages share
	read := func(do func()) { g.Go(func() error { do(); return nil }) }
	read(func() {
		p.Definitions = s.definitions(ctx, who, c)
		p.Definition = shown(p.Definitions.Rows, c.Version)
		if p.Definition == nil && p.Definitions.Err == nil {
			p.Follows = s.follows(ctx, who, c)
		}
	})
	read(func() { p.Heat = s.heat(ctx, who, c) })
	read(func() { p.Variants = s.variants(ctx, who, c) })
	read(func() { p.Tokens = s.present(ctx, who, c) })
	read(func() { p.Versions = s.versions(ctx, who, c) })
	read(func() { p.Troubles = s.troubles(ctx, who, c) })
	_ = g.Wait() // each keeps its own error
	p.Elements = together(p.Heat.Rows, p.Tokens.Rows, p.Troubles.Rows)
	p.Histogram = histogram(p.Versions.Rows, c.Version)
	return p
}

// shown is the definition whose diagram is shown: of the version that is chosen,
// or the newest one; nil when none has XML.
func shown(all []definitionRow, version int64) *definitionRow {
	for i := range all {
		if all[i].HasXML && (version == 0 || all[i].Version == version) {
			return &all[i]
		}
	}
	return nil
}

// together adds to what has happened at elements who is there now, and what is
// wrong there. A multi-instance body counts as its activity.
func together(heat, tokens, troubles []elementRow) []elementRow {
	all := slices.Clone(heat)
	at := func(id string) *elementRow {
		for i := range all {
			if all[i].ID == id && all[i].Type != "MULTI_INSTANCE_BODY" {
				return &all[i]
			}
		}
		all = append(all, elementRow{ID: id})
		return &all[len(all)-1]
	}
	for _, t := range tokens {
		at(t.ID).Active += t.Active
	}
	for _, t := range troubles {
		e := at(t.ID)
		e.Incidents += t.Incidents
		e.Open += t.Open
	}
	return all
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
