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

// chosen is the process of a page, with its filters.
type chosen struct {
	Source, Process string
	Version         int64 // 0: all
	Window          window
	Tenant          string // empty: all
	Variant         string // variantRow.Way that the heat map is restricted to; empty: all
	Target          string // target duration of instances; empty: none
}

// instances selects the instances of the process begun in the window.
func (c chosen) instances(who *session) string {
	return fill(instancesOf, "rows", c.began(), "tenants", c.mine(who))
}

// began is a condition: instances of the source begun in the window.
func (c chosen) began() string {
	return "source = " + quote(c.Source) + " AND " + c.Window.within("started_at")
}

// mine is a condition: instances that now belong to the process.
func (c chosen) mine(who *session) string {
	return filters{{Name: "tenant", Value: c.Tenant}}.ofTenant(who) + " AND process = " + quote(c.Process) + c.ofVersion("process_version")
}

func (c chosen) pairs() []string {
	return []string{"source", quote(c.Source), "process", quote(c.Process)}
}

// VersionText is the version; empty: all.
func (c chosen) VersionText() string {
	if c.Version == 0 {
		return ""
	}
	return itoa(c.Version)
}

func (c chosen) Path() string { return c.To("/process", "target", c.Target) }

// Whole is c for all versions.
func (c chosen) Whole() chosen {
	c.Version = 0
	return c
}

func (c chosen) ElementsPath() string { return c.To("/process/elements", "variant", c.Variant) }

// OfVariant is the page of the process with the heat map of one variant.
func (c chosen) OfVariant(way string) string {
	return c.To("/process", "target", c.Target, "variant", way)
}

// ofVariant selects the instances of the variant.
func (c chosen) ofVariant(who *session) string {
	return fill("SELECT source, instance FROM\n($ways) WHERE way = $variant", "ways", c.ways(who), "variant", c.Variant)
}

// To links to a page with the parameters of c, and pairs of further ones.
func (c chosen) To(path string, pairs ...string) string {
	all := append([]string{"source", c.Source, "id", c.Process, "version", c.VersionText(), "tenant", c.Tenant}, c.Window.pairs()...)
	return link(path, append(all, pairs...)...)
}

func (c chosen) ofVersion(column string) string {
	if c.Version == 0 {
		return ""
	}
	return fmt.Sprintf(" AND %s = %d", column, c.Version)
}

type versionRow struct {
	Version                                  int64
	Instances, Active, Completed, Terminated uint64
	WithIncidents                            uint64
	P50, P95                                 *int64
	Within                                   uint64 // completed within the target
	Steps                                    []int8 // histogram step of each completed instance
}

const versionsSQL = `
SELECT process_version, countIf(begun) AS instances, countIf(reached < 3) AS active, countIf(begun AND reached = 3) AS completed,
    countIf(begun AND reached = 4) AS terminated, countIf(begun AND stopped) AS with_incidents,
    toInt64(round(quantileExactInclusiveIf(0.5)(took_ms, begun AND reached = 3))) AS p50, toInt64(round(quantileExactInclusiveIf(0.95)(took_ms, begun AND reached = 3))) AS p95,
    countIf(begun AND reached = 3 AND took_ms < $target) AS within, groupArrayIf(toInt8(floor(2 * log2(greatest(assumeNotNull(took_ms), 1)))), begun AND reached = 3 AND took_ms IS NOT NULL) AS steps
FROM
(
    SELECT process_version, reached, took_ms, notEmpty(raised) AS stopped, ifNull($within, 0) AS begun FROM
    ($instances)
)
GROUP BY process_version
ORDER BY process_version DESC`

// versions compares all versions, also when one is chosen. It reads the instances that
// began in the window or are active, once.
func (s *Server) versions(ctx context.Context, who *session, c chosen) section[versionRow] {
	c.Version = 0
	target, _ := duration(c.Target) // chosenOf has rejected invalid ones
	return rowsOf[versionRow](ctx, s.db, fill(versionsSQL, "target", itoa(target.Milliseconds()), "within", c.Window.within("started"),
		"instances", fill(instancesOf, "rows", "source = "+quote(c.Source)+" AND (state < 3 OR "+c.Window.within("started_at")+")", "tenants", c.mine(who))))
}

// bar is a bar of the histogram of durations.
type bar struct {
	Step      int8 // lower bound: 2^(Step/2) ms
	Instances uint64
}

// histogram counts the completed instances of a version by duration. Version 0: all.
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

// variantRow is a path through the process, with the instances that took it.
type variantRow struct {
	Path      []string
	Instances uint64
	P50       *int64
	Sample    string // key of an instance
	Way       uint64 // hash of the path
}

// lately is the number of newest instances whose paths are read.
const lately = 2000

// lastOfProcess selects the elements of the newest instances that are or were of the
// process.
const lastOfProcess = `source = $source AND (source, process_instance_key) GLOBAL IN
        (SELECT source, process_instance_key FROM flow.process_instances FINAL
        WHERE $began AND has(processes, $process) ORDER BY started_at DESC LIMIT $lately)`

const waysSQL = `
SELECT source, instance, took, path, cityHash64(path) % 1000000000000000 AS way
FROM
(
    SELECT source, instance, maxIf(took_ms, type = 'PROCESS') AS took,
        arrayCompact(arrayMap(step -> step.3, arraySort(groupArrayIf((assumeNotNull(activated), element, id), type NOT IN ('PROCESS', 'MULTI_INSTANCE_BODY') AND activated IS NOT NULL)))) AS path
    FROM
    (
        $elements
    )
    GROUP BY source, instance
    HAVING countIf(type = 'PROCESS' AND reached = 3 AND process = $process$version AND $tenants) > 0
)`

// ways reads the paths of completed instances among the newest of the window.
func (c chosen) ways(who *session) string {
	last := fill(lastOfProcess, append(c.pairs(), "began", c.began(), "lately", itoa(lately))...)
	return fill(waysSQL, append(c.pairs(), "elements", fill(elementsOf, "keys", last, "within", "1"), "tenants", who.only("tenant"), "version", c.ofVersion("process_version"))...)
}

const variantsSQL = `
SELECT path, count() AS instances, toInt64(round(quantileExactInclusive(0.5)(took))) AS p50, any(instance) AS sample, way
FROM
(
$ways
)
GROUP BY path, way
ORDER BY instances DESC, path
LIMIT 10`

// variants reads the most frequent paths.
func (s *Server) variants(ctx context.Context, who *session, c chosen) section[variantRow] {
	return rowsOf[variantRow](ctx, s.db, fill(variantsSQL, "ways", c.ways(who)))
}

type followRow struct {
	From, To string
	Times    uint64
	P50      *int64 // ms from the end of From to the start of To
}

// followsSQL: an element follows the last one of its scope that ended before it began, as in
// the question directly_follows of docs/analytics.md. Waiting at a join is left out.
const followsSQL = `
SELECT edge.1 AS from_id, edge.2 AS to_id, count() AS times, toInt64(round(quantileExactInclusive(0.5)(edge.3))) AS p50
FROM
(
    SELECT instance, arrayJoin(arrayFilter((edge, m, e) -> e.3 AND NOT m.3, arrayMap((m, e) -> (e.4, m.4, m.1 - e.1), within, ends), within, ends)) AS edge,
        arraySort(arrayMap(m -> m.2, arrayFilter(m -> m.1 = one, moments))) AS within, arrayFill(m -> m.3, within) AS ends
    FROM
    (
        WITH ifNull(toUnixTimestamp64Milli(entered), 0) AS begun, ifNull(toUnixTimestamp64Milli(coalesce(completed, terminated)), 0) AS ended
        SELECT instance, groupArrayIf(element, type = 'MULTI_INSTANCE_BODY') AS bodies,
            groupArrayArray(arrayFilter(m -> m.1 > 0 AND m.2.1 > 0, [
                (ifNull(scope, 0), (begun, element, false, toString(id))), (ifNull(scope, 0), (ended, element, true, toString(id)))])) AS moments
        FROM
        (
            $elements
        )
        GROUP BY instance
    )
    ARRAY JOIN arrayFilter(s -> NOT has(bodies, s), arrayDistinct(moments.1)) AS one
)
GROUP BY from_id, to_id
ORDER BY times DESC, from_id, to_id
LIMIT 200`

// follows reads the directly-follows graph of the newest instances.
func (s *Server) follows(ctx context.Context, who *session, c chosen) section[followRow] {
	last := fmt.Sprintf("SELECT source, instance FROM (%s) ORDER BY started DESC LIMIT %d", c.instances(who), lately)
	return rowsOf[followRow](ctx, s.db, fill(followsSQL, "elements", fill(elementsOf, "keys", "source = "+quote(c.Source)+" AND (source, process_instance_key) GLOBAL IN ("+last+")", "within", "1")))
}

// callRow counts calls from one process to another.
type callRow struct {
	Caller, Called string
	Instances      uint64 // called instances begun in the window
}

// callsSQL reads each instance once: by its own key as a caller, and by that of its caller.
const callsSQL = `
SELECT above AS caller, called, count() AS instances
FROM
(
    SELECT anyIf(process, own) AS above, groupArrayIf(process, NOT own) AS below
    FROM
    (
        SELECT source, process_instance_key AS instance, splitByChar('\t', p.migrated) AS moved, if(p.migrated = '', p.bpmn_process_id, moved[2]) AS process,
            ifNull(p.parent_process_instance_key, -1) AS caller, p.started_at AS started, p.tenant_id AS tenant
        FROM flow.process_instances AS p FINAL
        PREWHERE source = $source AND process_instance_key GLOBAL IN
            (SELECT arrayJoin([process_instance_key, toString(assumeNotNull(parent_process_instance_key))]) FROM flow.process_instances WHERE parent_process_instance_key > 0 AND $began)
        WHERE p.state > 0 AND $visible
    )
    ARRAY JOIN [true, false] AS own
    WHERE own OR caller > 0 AND $within AND $tenants
    GROUP BY source, if(own, toInt64OrZero(instance), caller)
    HAVING countIf(own) > 0 AND notEmpty(below)
)
ARRAY JOIN below AS called
WHERE above = $process OR called = $process
GROUP BY above, called
ORDER BY instances DESC, caller, called
LIMIT 100`

// calls reads the callers and callees of the process, of all versions.
func (s *Server) calls(ctx context.Context, who *session, c chosen) section[callRow] {
	return rowsOf[callRow](ctx, s.db, fill(callsSQL, append(c.pairs(), "began", c.began(), "within", c.Window.within("started"),
		"visible", who.only("tenant"), "tenants", filters{{Name: "tenant", Value: c.Tenant}}.ofTenant(who))...))
}

// callers selects the callers of the instances that match a condition.
func callers(condition, tenants string) string {
	return fill(instancesOf, "rows", "(source, process_instance_key) GLOBAL IN\n        (SELECT source, toString(assumeNotNull(parent_process_instance_key)) FROM flow.process_instances WHERE parent_process_instance_key > 0 AND "+condition+")", "tenants", tenants)
}

// definitionRow is a deployed version.
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

func (s *Server) definitions(ctx context.Context, who *session, c chosen) section[definitionRow] {
	return rowsOf[definitionRow](ctx, s.db, fill(definitionsSQL, append(c.pairs(), "theirs", who.theirs(c.Source))...))
}

type processPage struct {
	chosen
	Versions    section[versionRow]
	Was         section[versionRow] // of the period before, if compared
	Histogram   []bar
	Variants    section[variantRow]
	Calls       section[callRow]
	Definitions section[definitionRow]
	Definition  *definitionRow     // with the diagram shown; nil: none
	Follows     section[followRow] // only without a diagram
	Tokens      section[placeRow]
	Troubles    section[placeRow]
	Places      []placeRow // merged Tokens and Troubles
	AsOf        string     // of Tokens
}

// Before is a version in the period before: nil if not compared.
func (p *processPage) Before(version int64) *versionRow {
	if !p.Window.Compare || p.Was.Err != nil {
		return nil
	}
	if i := slices.IndexFunc(p.Was.Rows, func(r versionRow) bool { return r.Version == version }); i >= 0 {
		return &p.Was.Rows[i]
	}
	return new(versionRow)
}

// Of is another process of the source, all versions, in the same window.
func (p *processPage) Of(process string) chosen {
	return chosen{Source: p.Source, Process: process, Window: p.Window, Tenant: p.Tenant}
}

func (p *processPage) Chosen() chosen { return p.chosen }

// Filters are those of the address; source and process are the title.
func (p *processPage) Filters() filters {
	return filters{{Name: "source"}, {Name: "id"}, {Name: "version", Label: "Version", Value: p.VersionText()}, {Name: "tenant", Label: "Tenant", Value: p.Tenant}}
}

// Marks are the overlays shown at first; elementsPage has the heat map.
func (p *processPage) Marks() map[string]heatMark { return placeMarks(p.Places) }

func (p *processPage) DiagramPath() string { return definitionPath(p.Source, p.Definition.Key) }

// Reached counts the completed instances of the chosen versions, and those within the
// target.
func (p *processPage) Reached() (r struct{ Completed, Within uint64 }) {
	for _, v := range p.Versions.Rows {
		if p.Version == 0 || p.Version == v.Version {
			r.Completed, r.Within = r.Completed+v.Completed, r.Within+v.Within
		}
	}
	return r
}

// Deployed is the time a version was deployed; nil if not known.
func (p *processPage) Deployed(version int64) *time.Time {
	for _, d := range p.Definitions.Rows {
		if d.Version == version {
			return d.DeployedAt
		}
	}
	return nil
}

func chosenOf(r *http.Request, now time.Time) (c chosen, err error) {
	c = chosen{Source: r.FormValue("source"), Process: r.FormValue("id"), Tenant: r.FormValue("tenant"), Target: r.FormValue("target"), Variant: r.FormValue("variant"), Window: windowOf(r, now)}
	if c.Window.Err != nil {
		return c, c.Window.Err
	}
	if c.Process == "" {
		return c, refuse(http.StatusBadRequest, "The address lacks source or id: choose a process from the list of processes.")
	}
	if _, err := duration(c.Target); c.Target != "" && err != nil {
		return c, refuse(http.StatusBadRequest, "The target %q is not a duration such as 90s, 2h, or 3d.", c.Target)
	}
	if c.Variant != "" && !onlyDigits.MatchString(c.Variant) {
		return c, refuse(http.StatusBadRequest, "The variant %q is not a number.", c.Variant)
	}
	if text := r.FormValue("version"); text != "" {
		if c.Version, err = strconv.ParseInt(text, 10, 64); err != nil {
			return c, refuse(http.StatusBadRequest, "The version %q is not a number.", text)
		}
	}
	return c, nil
}

func (s *Server) process(w http.ResponseWriter, r *http.Request, who *session) error {
	c, err := chosenOf(r, who.at)
	if err != nil {
		return err
	}
	page := s.processData(r.Context(), who, c)
	if page.Versions.Err == nil && len(page.Versions.Rows) == 0 && len(page.Definitions.Rows) == 0 && c.Window.Name == "all" {
		return refuse(http.StatusNotFound, "Process %q of source %q does not exist.", c.Process, c.Source)
	}
	return s.show(w, r, who, "process", c.Process, page)
}

// processData reads all sections in parallel.
func (s *Server) processData(ctx context.Context, who *session, c chosen) *processPage {
	p := &processPage{chosen: c, AsOf: who.asOf().UTC().Format(time.RFC3339)}
	var g errgroup.Group
	g.SetLimit(4) // leaves connections for other pages
	read := func(do func()) { g.Go(func() error { do(); return nil }) }
	read(func() {
		p.Definitions = s.definitions(ctx, who, c)
		p.Definition = shown(p.Definitions.Rows, c.Version)
		if p.Definition == nil && p.Definitions.Err == nil {
			p.Follows = s.follows(ctx, who, c)
		}
	})
	read(func() { p.Variants = s.variants(ctx, who, c) })
	read(func() { p.Versions = s.versions(ctx, who, c) })
	if c.Window.Compare {
		read(func() { p.Was = s.versions(ctx, who, c.Then()) })
	}
	read(func() { p.Calls = s.calls(ctx, who, c) })
	read(func() { p.Tokens = s.present(ctx, who, c) })
	read(func() { p.Troubles = s.troubles(ctx, who, c) })
	_ = g.Wait() // each section has its own error
	p.Places = places(p.Tokens.Rows, p.Troubles.Rows)
	p.Histogram = histogram(p.Versions.Rows, c.Version)
	return p
}

// shown is the newest definition of the version, or of all, that has XML; nil if none has.
func shown(all []definitionRow, version int64) *definitionRow {
	for i := range all {
		if all[i].HasXML && (version == 0 || all[i].Version == version) {
			return &all[i]
		}
	}
	return nil
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
