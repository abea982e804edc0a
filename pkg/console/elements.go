package console

import (
	"cmp"
	"context"
	"net/http"
	"slices"
)

// heatRow counts the executions of an element. The body of a multi-instance activity has
// its own row, of the type MULTI_INSTANCE_BODY.
type heatRow struct {
	ID, Type              string
	Executions, Completed uint64
	Terminated            uint64
	P50, P95, Total       *int64 // ms
}

// placeRow is the current state of an element.
type placeRow struct {
	ID        string
	Active    uint64 // instances at the element, also those begun before the window
	Incidents uint64 // created in the window
	Open      uint64 // incidents open now
	Type      string // of the active element instances
	P50       *int64 // ms since they were activated, as of the page
	Longest   *int64
}

// elementsOf are element instances, one row each. $keys is a condition on the sorting key,
// before FINAL merges rows; $within one on merged rows. The last migration determines an
// element's id and process.
const elementsOf = `SELECT source, process_instance_key AS instance, key AS element, splitByChar('\t', e.migrated) AS moved,
        if(e.migrated = '', e.element_id, moved[4]) AS id, if(e.migrated = '', e.bpmn_process_id, moved[2]) AS process,
        ifNull(if(e.migrated = '', e.version, toInt64OrNull(moved[3])), 0) AS process_version,
        e.bpmn_element_type AS type, e.flow_scope_key AS scope, e.state AS reached, e.tenant_id AS tenant,
        e.entered_at AS entered, e.activated_at AS activated, e.completed_at AS completed, e.terminated_at AS terminated,
        dateDiff('millisecond', activated, completed) AS took_ms
    FROM flow.element_instances AS e FINAL
    PREWHERE $keys
    WHERE $within`

// heatSQL groups elements by a number, which is faster than by texts.
const heatSQL = `
SELECT any(id), any(type), count() AS executions, countIf(reached = 3) AS completed, countIf(reached = 4) AS terminated,
    toInt64(round(quantileExactInclusiveIf(0.5)(ms, reached = 3))) AS p50, toInt64(round(quantileExactInclusiveIf(0.95)(ms, reached = 3))) AS p95, sum(ms) AS total
FROM
(
    SELECT id, type, reached, cityHash64(id) + 3 * cityHash64(type) AS what, ifNull(activated, entered) AS since,
        dateDiff('millisecond', since, coalesce(completed, terminated, if(reached < 3, greatest(since, $now), NULL))) AS ms
    FROM
    ($elements)
    WHERE process = $process$version AND type != 'PROCESS' AND $tenants
)
GROUP BY what
ORDER BY total DESC, any(id), any(type)`

// elementsIn selects, before rows are merged, all rows of the elements that may be of a process:
// a row names it, names none, or is of an element that was migrated.
func elementsIn(process string) string {
	return " AND (bpmn_process_id IN (" + quote(process) + ", '') OR key GLOBAL IN (SELECT key FROM flow.element_instances WHERE migrated != ''))"
}

// heat counts executions at each element of the process that were entered in the window.
// Executions before a migration count for the earlier process.
func (s *Server) heat(ctx context.Context, who *session, c chosen) section[heatRow] {
	keys := "source = " + quote(c.Source) + elementsIn(c.Process)
	if c.Variant != "" {
		keys += " AND " + key + " GLOBAL IN (" + c.ofVariant(who) + ")"
	}
	return rowsOf[heatRow](ctx, s.db, fill(heatSQL, "process", quote(c.Process), "now", moment(who.at), "elements", fill(elementsOf, "keys", keys, "within", c.Window.within("entered_at")),
		"tenants", who.only("tenant"), "version", c.ofVersion("process_version")))
}

// tokensSQL merges rows by GROUP BY: few are of active elements, and FINAL costs more.
const tokensSQL = `
SELECT $columns
FROM
(
    SELECT source, process_instance_key AS instance, splitByChar('\t', max(e.migrated)) AS moved,
        if(length(moved) < 4, max(e.element_id), moved[4]) AS id, if(length(moved) < 4, max(e.bpmn_process_id), moved[2]) AS process,
        ifNull(if(length(moved) < 4, max(e.version), toInt64OrNull(moved[3])), 0) AS process_version,
        max(e.bpmn_element_type) AS type, max(e.state) AS reached, max(e.tenant_id) AS tenant, min(e.entered_at) AS entered, min(e.activated_at) AS activated
    FROM flow.element_instances AS e
    PREWHERE source = $source$in AND $actives
    GROUP BY source, process_instance_key, key
)
WHERE process = $process$version AND reached < 3 AND type NOT IN ('PROCESS', 'MULTI_INSTANCE_BODY') AND $tenants`

// present selects the active elements; and is a further condition.
func (c chosen) present(who *session, columns, and string) string {
	return fill(tokensSQL, append(c.pairs(), "in", elementsIn(c.Process), "actives", activeElements, "columns", columns, "version", c.ofVersion("process_version"), "tenants", who.only("tenant"))...) + and
}

// activeElements selects the elements with a row of state < 3: others are not active.
const activeElements = "key GLOBAL IN (SELECT key FROM flow.element_instances WHERE state < 3)"

// present counts the instances now at each element and how long they have been there.
func (s *Server) present(ctx context.Context, who *session, c chosen) section[placeRow] {
	columns := fill(`id, uniqExact(source, instance) AS active, toUInt64(0) AS incidents, toUInt64(0) AS open, any(type) AS kind,
    toInt64(round(quantileExactInclusive(0.5)(dateDiff('millisecond', ifNull(activated, entered), greatest(ifNull(activated, entered), $now)) AS waited))) AS p50, max(waited) AS longest`, "now", moment(who.asOf()))
	return rowsOf[placeRow](ctx, s.db, c.present(who, columns, "\nGROUP BY id\nORDER BY id"))
}

const troublesSQL = `
SELECT id, toUInt64(0) AS active, countIf(created IS NOT NULL AND $within) AS incidents, countIf(reached < 2) AS open
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
func (s *Server) troubles(ctx context.Context, who *session, c chosen) section[placeRow] {
	return rowsOf[placeRow](ctx, s.db, fill(troublesSQL, append(c.pairs(), "within", c.Window.within("created"), "tenants", who.only("tenant"))...))
}

// places merges active instances and incidents by element, most open incidents first.
func places(tokens, troubles []placeRow) []placeRow {
	all := slices.Clone(tokens)
	for _, t := range troubles {
		i := slices.IndexFunc(all, func(p placeRow) bool { return p.ID == t.ID })
		if i < 0 {
			i, all = len(all), append(all, placeRow{ID: t.ID})
		}
		all[i].Incidents, all[i].Open = t.Incidents, t.Open
	}
	slices.SortFunc(all, func(a, b placeRow) int {
		return cmp.Or(cmp.Compare(b.Open, a.Open), cmp.Compare(b.Active, a.Active), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// heatMark is the overlay of an element in the diagram. The process page has its current
// state; the elements page, loaded later, has its history.
type heatMark struct {
	Active     uint64 `json:"active,omitempty"`
	Incidents  uint64 `json:"incidents,omitempty"`
	Open       uint64 `json:"open,omitempty"`
	Count      uint64 `json:"count,omitempty"`
	Terminated uint64 `json:"terminated,omitempty"`
	Type       string `json:"type,omitempty"`
	Time       int64  `json:"time,omitempty"` // ms, in all
	P50        int64  `json:"p50,omitempty"`  // ms
	P95        int64  `json:"p95,omitempty"`
}

// placeMarks are the overlays of the current state, by element.
func placeMarks(rows []placeRow) map[string]heatMark {
	marks := map[string]heatMark{}
	for _, p := range rows {
		marks[p.ID] = heatMark{Active: p.Active, Incidents: p.Incidents, Open: p.Open}
	}
	return marks
}

// heatMarks are the overlays of the history, by element. A multi-instance body and its
// turns share one overlay: it has the count of the turns and the longer total time.
func heatMarks(rows []heatRow) map[string]heatMark {
	marks := map[string]heatMark{}
	for _, h := range rows {
		m := marks[h.ID]
		if h.Type != "MULTI_INSTANCE_BODY" {
			m.Count += h.Executions
			m.Terminated += h.Terminated
			m.Type = h.Type
			if h.P50 != nil {
				m.P50, m.P95 = *h.P50, *h.P95
			}
		}
		if h.Total != nil {
			m.Time = max(m.Time, *h.Total)
		}
		marks[h.ID] = m
	}
	return marks
}

type elementsPage struct {
	chosen
	Heat section[heatRow]
}

// To links to a list with the same filters, including the variant.
func (p elementsPage) To(path string, pairs ...string) string {
	return p.chosen.To(path, append(pairs, "variant", p.Variant)...)
}

func (p elementsPage) Marks() map[string]heatMark { return heatMarks(p.Heat.Rows) }

// elements is the page of executions per element of a process. The process page loads its
// table and heat map from here after it is shown: with many instances this query takes as
// long as all others together.
func (s *Server) elements(w http.ResponseWriter, r *http.Request, who *session) error {
	c, err := chosenOf(r, who.at)
	if err != nil {
		return err
	}
	return s.show(w, r, who, "elements", "Elements of "+c.Process, elementsPage{c, s.heat(r.Context(), who, c)})
}
