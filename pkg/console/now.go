package console

import (
	"net/http"
	"strconv"
	"time"

	"sluice/pkg/flow"
)

type nowPage struct {
	*look
	Every         int64 // ms between updates
	Problems      []problem
	Counted       bool // whether open work was counted
	Lanes         []laneRow
	Totals        flow.Totals
	Backlog       uint64  // in messages
	Accepted      float64 // records since the apis started
	HasAccepted   bool
	Accepts, Puts float64 // records accepted and stored per second
	RowsSQL       string
	Grafana       string // URL of the dashboard; may be empty
}

// laneRow is a lane with the metrics of its ingester.
type laneRow struct {
	Lane
	State, Age string
}

// now is the first page: problems and current figures. Grafana dashboards have the history.
func (s *Server) now(w http.ResponseWriter, r *http.Request, who *session) error {
	if who.Limited() {
		http.Redirect(w, r, "/processes", http.StatusSeeOther)
		return nil
	}
	return s.show(w, r, who, "now", "Overview", s.nowData(r))
}

func (s *Server) nowData(r *http.Request) nowPage {
	open := s.work.last.Load()
	now, before := s.watch.latest(r.Context())
	p := nowPage{look: now, Every: s.cfg.Every.Milliseconds(), Problems: problems(now, open, s.cfg.Stuck), Counted: open != nil, RowsSQL: rowsQuery, Grafana: s.cfg.Grafana}
	p.Totals, p.Backlog = now.Standing.totals()
	p.Accepted, p.HasAccepted = now.Programs.sum(acceptedMetric)
	if seconds := now.At.Sub(before.At).Seconds(); seconds > 0 {
		accepted, _ := before.Programs.sum(acceptedMetric)
		totals, _ := before.Standing.totals()
		p.Accepts = max(0, p.Accepted-accepted) / seconds // negative after a restart of an api
		p.Puts = max(0, float64(p.Totals.Stored)-float64(totals.Stored)) / seconds
	}
	states, ages := now.Programs.highest(laneStateMetric, "lane"), now.Programs.highest(laneAgeMetric, "lane")
	for _, lane := range now.Standing.Lanes {
		row := laneRow{Lane: lane, State: laneState(lane, states), Age: unknown}
		if age, ok := ages[strconv.Itoa(lane.Number)]; ok {
			row.Age = span(time.Duration(age * float64(time.Second)).Round(time.Millisecond))
		}
		p.Lanes = append(p.Lanes, row)
	}
	return p
}

// totals adds up the totals of all lanes, and their backlog in messages.
func (s Standing) totals() (sum flow.Totals, backlog uint64) {
	for _, lane := range s.Lanes {
		sum.Add(lane.Position.Totals)
		backlog += lane.Backlog
	}
	return sum, backlog
}

const unknown = "not available"

func share(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return min(100, 100*part/whole)
}

func laneState(lane Lane, states map[string]float64) string {
	state, known := states[strconv.Itoa(lane.Number)]
	switch {
	case lane.Position.Held(time.Now()):
		return "held by " + lane.Position.Hold.By
	case !known && lane.Position.Owner == "":
		return "no ingester"
	case !known:
		return unknown
	case state == 2:
		return "halted"
	case state == 1:
		return "retrying"
	}
	return "running"
}
