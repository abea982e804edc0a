package console

import (
	"context"
	"net/http"
	"time"
)

// instancesOf are process instances as they are now, one row each, made of the
// rows of the fold that $rows leaves: all of an instance or none. It says what
// v_process_instances says, and reads the fold without FINAL and only near what is
// asked for, so that it costs no more than that.
const instancesOf = `SELECT source, process_instance_key AS instance, max(p.tenant_id) AS tenant,
        splitByChar('\t', max(p.migrated)) AS moved,
        if(length(moved) < 4, max(p.bpmn_process_id), moved[2]) AS process,
        ifNull(if(length(moved) < 4, max(p.version), toInt64OrNull(moved[3])), 0) AS process_version,
        ifNull(if(length(moved) < 4, max(p.process_definition_key), toInt64OrNull(moved[4])), 0) AS definition,
        ifNull(max(p.parent_process_instance_key), -1) AS caller, ifNull(max(p.parent_element_instance_key), -1) AS caller_element,
        max(p.state) AS reached, min(p.started_at) AS started, coalesce(max(p.completed_at), max(p.terminated_at)) AS ended,
        min(p.first_seen) AS noticed, max(p.last_seen) AS seen, dateDiff('millisecond', started, ended) AS took_ms,
        groupUniqArrayArray(p.incident_keys) AS raised,
        if(empty(raised), 0, length(arrayFilter(k -> NOT has(groupUniqArrayArray(p.resolved_incident_keys), k), raised))) AS open
    FROM flow.process_instances AS p
    WHERE $rows
    GROUP BY source, process_instance_key
    HAVING reached > 0 AND $tenants`

// found leaves the rows of instances of which any row is found by a condition.
func found(condition string) string {
	return "(source, process_instance_key) GLOBAL IN\n        (SELECT source, process_instance_key FROM flow.process_instances WHERE " + condition + ")"
}

// active leaves the rows of instances that go on. All rows of such a one say so;
// of one that has ended some may not have heard of it, until they are merged.
func active(condition string) string {
	return condition + ` AND state < 3 AND (source, process_instance_key) GLOBAL NOT IN
        (SELECT source, process_instance_key FROM flow.process_instances WHERE ` + condition + ` AND state >= 3 AND (source, process_instance_key) GLOBAL IN
            (SELECT source, process_instance_key FROM flow.process_instances WHERE ` + condition + ` AND state < 3))`
}

// begunAndActive are the instances that began in a window and, once more, those
// that go on, whenever they began: begun tells which.
func begunAndActive(begun, goesOn, tenants string) string {
	return "SELECT *, 1 AS begun FROM (" + fill(instancesOf, "rows", begun, "tenants", tenants) +
		")\n    UNION ALL\n    SELECT *, 0 FROM (" + fill(instancesOf, "rows", goesOn, "tenants", tenants) + ")"
}

// processRow is a line of the list of processes.
type processRow struct {
	Source, ID       string
	Versions         []int64
	Instances        uint64 // begun in the window
	Active           uint64 // now, whenever they began
	Incidents        uint64 // open now
	Completed        uint64 // of those begun in the window
	Terminated       uint64
	Failed           uint64 // had an incident, or were terminated
	P50, P95         *int64
	Begun            []uint64 // over the window, in equal steps
	LastAt           *time.Time
	InstancesPath    string
	ActivePath       string
	IncidentsPath    string
	ProcessPath      string
	Multiple, Broken bool
}

// FailureRate is the share of the instances begun in the window that had an
// incident or were terminated.
func (p processRow) FailureRate() float64 {
	if p.Instances == 0 {
		return 0
	}
	return float64(p.Failed) / float64(p.Instances)
}

// sparks is how many steps a sparkline has.
const sparks = 24

const processListSQL = `
SELECT source, process, arraySort(groupUniqArray(process_version)) AS versions,
    countIf(begun) AS instances, countIf(NOT begun) AS active, sumIf(open, NOT begun) AS incidents,
    countIf(begun AND reached = 3) AS completed, countIf(begun AND reached = 4) AS terminated,
    countIf(begun AND (reached = 4 OR notEmpty(raised))) AS failed,
    quantileExactIfOrNull(0.5)(took_ms, begun AND reached = 3) AS p50, quantileExactIfOrNull(0.95)(took_ms, begun AND reached = 3) AS p95,
    arrayMap(i -> countEqual(groupArrayIf(intDiv(toUnixTimestamp(assumeNotNull(started)) - $first, $step), begun) AS steps, i), range($sparks)) AS over_time,
    max(seen) AS last_at
FROM
(
    $instances
)
GROUP BY source, process
ORDER BY incidents DESC, active DESC, instances DESC, source, process
LIMIT 500`

// processList is every process of which instances began in the window, or are
// active.
func (s *Server) processList(ctx context.Context, who *session, w window) (p section[[]processRow]) {
	from := w.From
	if w.Name == "all" {
		from = w.To.Add(-365 * 24 * time.Hour) // what a sparkline shows
	}
	step := max(int64(w.To.Add(-time.Hour).Sub(from).Seconds())/sparks, 1)
	p.SQL = fill(processListSQL,
		"instances", begunAndActive(found(w.within("started_at")), active("1"), who.only("tenant")), "first", itoa(from.Unix()), "step", itoa(step), "sparks", itoa(sparks))
	p.Rows, p.Err = each(ctx, s.db, func(r *processRow) []any {
		return []any{&r.Source, &r.ID, &r.Versions, &r.Instances, &r.Active, &r.Incidents, &r.Completed, &r.Terminated, &r.Failed, &r.P50, &r.P95, &r.Begun, &r.LastAt}
	}, p.SQL)
	return p
}

// processesPage is what pages/processes.html shows.
type processesPage struct {
	Window window
	List   section[[]processRow]
}

// processes is the list of processes.
func (s *Server) processes(w http.ResponseWriter, r *http.Request, who *session) error {
	at := windowOf(r, time.Now())
	return s.show(w, r, who, "processes", "Processes", processesPage{at, s.processList(r.Context(), who, at)})
}
