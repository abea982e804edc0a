package console

import (
	"fmt"
	"strconv"
	"time"
)

// problem is something that needs a person, in words.
type problem struct {
	Key    string // tells it from others, and stays while it lasts
	Urgent bool   // records wait or are refused until an operator acts
	Text   string // what it is
	Do     string // what to do about it
	From   string // the metric that says so, or what else of /how does
	Link   string // where to look; may be empty
}

// Shares of a disk budget that are much, and very much: those of the alerts.
const (
	tight     = 80
	almostOut = 95
)

// problems are what needs a person now, the urgent ones first.
func (w *watch) problems(s *sample) []problem {
	var urgent, others []problem
	add := func(p problem) {
		if p.Urgent {
			urgent = append(urgent, p)
		} else {
			others = append(others, p)
		}
	}
	if s.Database != nil {
		add(problem{Key: "clickhouse", Urgent: true, From: "look", Text: "ClickHouse does not answer: " + s.Database.Error(),
			Do: "Start it, or see why it is busy. Records are taken and wait in the stream until it is back."})
	}
	if s.NATS != nil {
		add(problem{Key: "nats", Urgent: true, From: "look", Text: "NATS does not answer: " + s.NATS.Error(),
			Do: "Start it. Nothing is taken until it is back; nothing that was acknowledged is lost."})
	}
	for i, r := range s.Programs {
		if r.Err != nil {
			add(problem{Key: "down" + strconv.Itoa(i), Urgent: true, From: "look", Text: fmt.Sprintf("The program at %s does not answer: %v", r.Address, r.Err),
				Do: "Start it, or tell the console its right address (--watch)."})
		}
		for _, missing := range r.Missing {
			add(problem{Key: "missing" + strconv.Itoa(i) + missing.Name, Urgent: true, From: "sluice_ready", Text: fmt.Sprintf("The program at %s is not ready: %s: %s", r.Address, missing.Name, missing.Reason),
				Do: "Mend what it says; it then goes on by itself."})
		}
	}
	states := s.Programs.highest(laneStateMetric, "lane")
	missing := s.Programs.highest("sluice_ingest_table_missing_messages", "lane")
	for _, lane := range s.Standing.Lanes {
		for _, p := range w.laneProblems(lane, states[strconv.Itoa(lane.Number)], missing[strconv.Itoa(lane.Number)]) {
			add(p)
		}
	}
	if s.Programs.highest("sluice_ingest_changes_state", "")[""] == 2 {
		add(problem{Key: "changes", Urgent: true, From: "sluice_ingest_changes_state", Text: "Changes of users and dataset fields are not applied.", Do: "The log of the ingester says why. Records go on."})
	}
	if dead := s.Standing.Dead; dead.Letters > 0 {
		text := fmt.Sprintf("%s dead letters wait for a decision.", number(dead.Letters))
		if dead.Letters == 1 {
			text = "1 dead letter waits for a decision."
		}
		add(problem{Key: "dead", From: "dead-letters", Text: text, Do: "Look at their reasons, then replay or drop them.", Link: "/dead"})
		if used := share(float64(dead.Bytes), float64(dead.Max)); used > tight {
			add(problem{Key: "deadroom", Urgent: true, From: "dead-letters", Text: fmt.Sprintf("Dead letters use %.0f %% of their room.", used),
				Do: "When it is used up, a lane that has to set a record aside halts. Replay or drop some, or give them more (--dead-max-bytes).", Link: "/dead"})
		}
	}
	for _, source := range s.Standing.Sources {
		if source.Moving != nil {
			add(problem{Key: "moving" + source.Name, From: "sources", Text: fmt.Sprintf("Source %q is being moved to other lanes: its posts are refused meanwhile.", source.Name),
				Do: "When no caller does that any more: sluice lanes spread " + source.Name, Link: "/sources"})
		}
	}
	for what, value := range s.Programs.highest("sluice_auth_stale", "source") {
		if value > 0 {
			add(problem{Key: "stale" + what, From: "sluice_auth_stale", Text: "The newest " + what + " of the api cannot be used: older ones are in force.", Do: "The log of the api says what is wrong with them."})
		}
	}
	return append(urgent, others...)
}

// laneProblems are those of one lane.
func (w *watch) laneProblems(lane Lane, state, missing float64) (all []problem) {
	key := func(what string) string { return what + strconv.Itoa(lane.Number) }
	name := fmt.Sprintf("Lane %d", lane.Number)
	switch {
	case state == 2:
		all = append(all, problem{Key: key("halted"), Urgent: true, From: "sluice_ingest_state", Text: name + " is halted: its records wait.", Do: "The log of the ingester says what to mend; it then goes on by itself."})
	case state == 1:
		all = append(all, problem{Key: key("retrying"), From: "sluice_ingest_state", Text: name + " is trying to store the same block again.", Do: "Mostly ClickHouse is away or busy, and it passes by itself."})
	case lane.Position.Owner == "" && lane.Waiting > 0:
		all = append(all, problem{Key: key("nobody"), Urgent: true, From: "lane-entries", Text: name + " is read by no ingester: its records wait.", Do: "Start an ingester, or see why the ones that run do not take the lane."})
	}
	if missing > 0 {
		all = append(all, problem{Key: key("lost"), Urgent: true, From: "sluice_ingest_table_missing_messages", Text: fmt.Sprintf("The table lacks %s messages that were stored from lane %d.", number(missing), lane.Number),
			Do: "Find what is missing with sluice verify before the stream forgets it."})
	}
	used := share(float64(lane.Bytes), float64(lane.MaxBytes))
	full, grows := w.fullIn(lane)
	switch {
	case used > almostOut:
		all = append(all, problem{Key: key("full"), Urgent: true, From: "sluice_stream_lane_bytes", Text: fmt.Sprintf("%s uses %.0f %% of its disk budget: posts are about to be refused with 429.", name, used),
			Do: "Get ClickHouse to store again, or raise the budget (--stream-max-bytes)."})
	case used > tight:
		all = append(all, problem{Key: key("tight"), From: "sluice_stream_lane_bytes", Text: fmt.Sprintf("%s uses %.0f %% of its disk budget.", name, used), Do: "In normal operation it is at most half, as history."})
	case grows && full < 4*time.Hour:
		all = append(all, problem{Key: key("soon"), From: "sluice_stream_lane_bytes", Text: fmt.Sprintf("At this rate the disk budget of lane %d is used up in %s.", lane.Number, span(full)),
			Do: "More is coming in than is stored. If it stays: another lane and another ingester, or a larger ClickHouse."})
	}
	return all
}
