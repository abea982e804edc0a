package console

import (
	"context"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// late is a condition for an instance that expired from the tables before a late record
// came: v_process_instances has it as EXPIRED.
func late(started, last string) string {
	return started + " IS NULL AND " + last + " < fromUnixTimestamp64Milli((SELECT max(value) FROM flow.history WHERE name = 'line'), 'UTC')"
}

// instancesOf reads the current state of the process instances that match $rows, one row
// each, as v_process_instances does. The aggregate table is sorted by start time: $rows on
// the start time or on keys reads little more than it returns.
var instancesOf = `SELECT source, process_instance_key AS instance, tenant_id AS tenant, splitByChar('\t', p.migrated) AS moved,
        if(p.migrated = '', p.bpmn_process_id, moved[2]) AS process,
        ifNull(if(p.migrated = '', p.version, toInt64OrNull(moved[3])), 0) AS process_version,
        ifNull(if(p.migrated = '', p.process_definition_key, toInt64OrNull(moved[4])), 0) AS definition,
        ifNull(p.parent_process_instance_key, -1) AS caller, ifNull(p.parent_element_instance_key, -1) AS caller_element,
        if(p.state < 3 AND ` + late("p.started_at", "p.last_seen") + `, 5, p.state) AS reached, p.started_at AS started, coalesce(p.completed_at, p.terminated_at) AS ended,
        substring(p.business_key, if(startsWith(p.business_key, '~'), 2, 37)) AS business_key, p.first_seen AS noticed, p.last_seen AS seen, dateDiff('millisecond', started, ended) AS took_ms,
        p.incident_keys AS raised, length(arrayFilter(k -> NOT has(p.resolved_incident_keys, k), raised)) AS open
    FROM flow.process_instances AS p FINAL
    WHERE $rows AND reached > 0 AND $tenants`

// found selects instances with a row that matches a condition. It applies conditions other
// than on the start time before FINAL merges rows.
func found(condition string) string {
	return "(source, process_instance_key) GLOBAL IN\n        (SELECT source, process_instance_key FROM flow.process_instances WHERE " + condition + ")"
}

// active selects the rows of active instances. All rows of an active instance have
// state < 3; so have some unmerged rows of an ended one. The innermost query ignores
// sources: that is faster, and selects a superset.
func active(condition string) string {
	return condition + ` AND state < 3 AND (source, process_instance_key) GLOBAL NOT IN
        (SELECT source, process_instance_key FROM flow.process_instances WHERE ` + condition + ` AND state >= 3 AND process_instance_key GLOBAL IN
            (SELECT process_instance_key FROM flow.process_instances WHERE ` + condition + ` AND state < 3))`
}

// activeOf reads active instances with fewer columns than instancesOf, and without FINAL:
// few rows are active.
var activeOf = `SELECT source, process_instance_key AS instance, max(p.tenant_id) AS tenant,
        splitByChar('\t', max(p.migrated)) AS moved,
        if(length(moved) < 4, max(p.bpmn_process_id), moved[2]) AS process,
        ifNull(if(length(moved) < 4, max(p.version), toInt64OrNull(moved[3])), 0) AS process_version,
        if(` + late("min(p.started_at)", "max(p.last_seen)") + `, 5, max(p.state)) AS reached, max(p.last_seen) AS seen
    FROM flow.process_instances AS p
    WHERE $rows
    GROUP BY source, process_instance_key
    HAVING reached BETWEEN 1 AND 2 AND $tenants`

// begunAndActive reads the instances begun in a window (what = 1) and all active
// instances (what = 2).
func begunAndActive(begun, active, tenants string) string {
	return "SELECT source, process, process_version, reached, started, took_ms, notEmpty(raised) AS stopped, seen, 1 AS what FROM\n    (" +
		fill(instancesOf, "rows", begun, "tenants", tenants) +
		")\n    UNION ALL\n    SELECT source, process, process_version, reached, NULL, NULL, 0, seen, 2 FROM\n    (" +
		fill(activeOf, "rows", active, "tenants", tenants) + ")"
}

// openOf reads the open incidents (what = 3).
const openOf = `SELECT source, process, 0, toUInt8(1), NULL, NULL, 0, NULL, 3 FROM
    (SELECT source, key, max(i.tenant_id) AS tenant, splitByChar('\t', max(i.migrated)) AS moved, if(length(moved) < 3, max(i.bpmn_process_id), moved[2]) AS process
    FROM flow.incidents AS i
    WHERE state < 2 AND (source, key) GLOBAL NOT IN
        (SELECT source, key FROM flow.incidents WHERE state = 2 AND key GLOBAL IN (SELECT key FROM flow.incidents WHERE state < 2))
    GROUP BY source, key
    HAVING $tenants)`

type processRow struct {
	Source, ID string
	Versions   []int64
	Instances  uint64 // begun in the window
	Active     uint64 // now, begun at any time
	Incidents  uint64 // open now
	Completed  uint64 // of those begun in the window
	Terminated uint64
	Failed     uint64 // had an incident, or were canceled
	P50, P95   *int64
	Begun      []uint64 // counts per step of the window
	LastAt     *time.Time
}

// FailureRate is Failed / Instances; 0 without instances.
func (p processRow) FailureRate() float64 {
	if p.Instances == 0 {
		return 0
	}
	return float64(p.Failed) / float64(p.Instances)
}

// sparks is the number of steps of a sparkline.
const sparks = 24

const processListSQL = `
SELECT source, process, arraySort(groupUniqArrayIf(process_version, what < 3)) AS versions,
    countIf(what = 1) AS instances, countIf(what = 2) AS active, countIf(what = 3) AS incidents,
    countIf(what = 1 AND reached = 3) AS completed, countIf(what = 1 AND reached = 4) AS terminated,
    countIf(what = 1 AND (reached = 4 OR stopped)) AS failed,
    toInt64(round(quantileExactInclusiveIf(0.5)(took_ms, what = 1 AND reached = 3))) AS p50, toInt64(round(quantileExactInclusiveIf(0.95)(took_ms, what = 1 AND reached = 3))) AS p95,
    arrayMap(i -> countEqual(groupArrayIf(toInt8(intDiv(toUnixTimestamp(assumeNotNull(started)) - $first, $step)), what = 1) AS steps, i), range($sparks)) AS over_time,
    max(seen) AS last_at
FROM
(
    $rows
    UNION ALL
    $open
)
WHERE $filters
GROUP BY source, process
ORDER BY incidents DESC, active DESC, instances DESC, source, process
LIMIT 500`

// processList reads every process with instances begun in the window, active instances, or
// open incidents.
func (s *Server) processList(ctx context.Context, who *session, w window, f filters) section[processRow] {
	from := w.From
	if w.From.Unix() == 0 {
		from = w.To.Add(-365 * 24 * time.Hour) // the span of the sparkline
	}
	step := max(int64(w.To.Add(-time.Hour).Sub(from).Seconds())/sparks, 1)
	return rowsOf[processRow](ctx, s.db, fill(processListSQL, "filters", f.Condition(),
		"rows", begunAndActive(w.within("started_at"), active("1"), f.ofTenant(who)), "open", fill(openOf, "tenants", f.ofTenant(who)), "first", itoa(from.Unix()), "step", itoa(step), "sparks", itoa(sparks)))
}

type processesPage struct {
	Window  window
	Filters filters
	List    section[processRow]
	Was     section[processRow] // of the period before, if compared
}

// Before is the row of a process in the period before: nil if not compared, zero if the
// process had no instances.
func (p processesPage) Before(row processRow) *processRow {
	if !p.Window.Compare || p.Was.Err != nil {
		return nil
	}
	if i := slices.IndexFunc(p.Was.Rows, func(r processRow) bool { return r.Source == row.Source && r.ID == row.ID }); i >= 0 {
		return &p.Was.Rows[i]
	}
	return new(processRow)
}

// Then is c in the period before.
func (c chosen) Then() chosen {
	c.Window = c.Window.Before()
	return c
}

func (p processesPage) Of(row processRow) chosen {
	return chosen{Source: row.Source, Process: row.ID, Window: p.Window, Tenant: p.Filters.Value("tenant")}
}

// ofTenant restricts the tenants visible to a session to that of the filter.
func (f filters) ofTenant(who *session) string {
	if tenant := f.Value("tenant"); tenant != "" {
		return who.only("tenant") + " AND tenant = " + quote(tenant)
	}
	return who.only("tenant")
}

func (s *Server) processes(w http.ResponseWriter, r *http.Request, who *session) error {
	at := windowOf(r, who.at)
	if at.Err != nil {
		return at.Err
	}
	f := filtersOf(r,
		filter{Name: "source", Label: "Source", Size: 12, column: "source"},
		filter{Name: "id", Label: "Process", Size: 14, column: "process"},
		filter{Name: "tenant", Label: "Tenant", Size: 8},
	)
	p, g := processesPage{Window: at, Filters: f}, errgroup.Group{}
	g.Go(func() error { p.List = s.processList(r.Context(), who, at, f); return nil })
	if at.Compare {
		g.Go(func() error { p.Was = s.processList(r.Context(), who, at.Before(), f); return nil })
	}
	_ = g.Wait() // each section has its own error
	return s.show(w, r, who, "processes", "Processes", p)
}
