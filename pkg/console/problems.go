package console

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// problem is something that needs attention, in words.
type problem struct {
	Urgent bool   // records wait or are rejected until an operator acts
	Text   string // what it is
	Do     string // what to do about it
	Link   string // where to look
}

// Shares of a disk budget that are much, and very much: those of the alerts.
const (
	tight     = 80
	almostOut = 95
)

// rejectedLately is how long a client that is rejected no more needs attention.
const rejectedLately = 5 * time.Minute

// problems are what needs attention now, the urgent ones first.
func problems(now *look) (all []problem) {
	add := func(urgent bool, link, text, do string) {
		all = append(all, problem{Urgent: urgent, Text: text, Do: do, Link: link})
	}
	if now.Database != nil {
		add(true, "#servers", "ClickHouse does not answer: "+now.Database.Error(),
			"Start it, or see why it is busy. Records are accepted and wait in the stream until it is back.")
	}
	if now.NATS != nil {
		add(true, "#servers", "NATS does not answer: "+now.NATS.Error(),
			"Start it. Nothing is accepted until it is back; nothing that was acknowledged is lost.")
	}
	for _, r := range now.Programs {
		if r.Err != nil {
			add(true, "#servers", fmt.Sprintf("The program at %s does not answer: %v", r.Address, r.Err),
				"Start it, or give the console its right address (--watch).")
		}
		for _, missing := range r.Missing {
			add(true, "#servers", fmt.Sprintf("The program at %s is not ready: %s: %s", r.Address, missing.Name, missing.Reason),
				"Fix the reported cause; it resumes automatically.")
		}
	}
	states, missing := now.Programs.highest(laneStateMetric, "lane"), now.Programs.highest(missingMetric, "lane")
	for _, lane := range now.Standing.Lanes {
		label := strconv.Itoa(lane.Number)
		all = append(all, laneProblems(lane, states[label], missing[label])...)
	}
	if now.Programs.highest(changesMetric, "")[""] == 2 {
		add(true, "#servers", "Changes of users and dataset fields are not applied.", "The log of the ingester has the cause. Records are not affected.")
	}
	if dead := now.Standing.Dead; dead.Letters > 0 {
		text := fmt.Sprintf("%s dead letters need a decision.", number(dead.Letters))
		if dead.Letters == 1 {
			text = "1 dead letter needs a decision."
		}
		add(false, "/dead", text, "Look at their reasons, then replay or drop them.")
		if used := share(float64(dead.Bytes), float64(dead.Max)); used > tight {
			add(true, "/dead", fmt.Sprintf("Dead letters use %.0f %% of their room.", used),
				"When it is used up, a lane that has to dead-letter a record halts. Replay or drop some, or raise --dead-max-bytes.")
		}
	}
	for _, source := range now.Standing.Sources {
		if source.Moving != nil {
			add(false, "/sources", fmt.Sprintf("Source %q is being moved to other lanes: its posts are rejected meanwhile.", source.Name),
				"When no command does that any more: sluice lanes spread "+source.Name)
		}
	}
	for _, c := range now.Programs.rejects() {
		if now.At.Sub(c.Last) < rejectedLately {
			add(false, "/sources#rejected", fmt.Sprintf("Client %s at %s is rejected: %s (%d), %s times within %s.", c.Subject, c.Address, c.Code, c.Status, number(c.Count), span(c.Last.Sub(c.First).Round(time.Second))),
				"A token that is not accepted: sluice source rotate makes another one. The log of the api has the route.")
		}
	}
	stale := now.Programs.highest(staleMetric, "source")
	for _, what := range slices.Sorted(maps.Keys(stale)) {
		if stale[what] > 0 {
			add(false, "#servers", "The newest "+what+" of the api cannot be used: older ones are in force.", "The log of the api has the cause.")
		}
	}
	slices.SortStableFunc(all, func(a, b problem) int { return cmp.Compare(rank(a), rank(b)) })
	return all
}

func rank(p problem) int {
	if p.Urgent {
		return 0
	}
	return 1
}

// laneProblems are those of one lane.
func laneProblems(lane Lane, state, missing float64) (all []problem) {
	name := fmt.Sprintf("Lane %d", lane.Number)
	add := func(urgent bool, text, do string) {
		all = append(all, problem{Urgent: urgent, Text: name + text, Do: do, Link: "#lanes"})
	}
	switch {
	case state == 2:
		add(true, " is halted: its records wait.", "The log of the ingester has the cause. Fix it; the lane resumes automatically.")
	case state == 1:
		add(false, " is retrying the same block.", "Usually ClickHouse is away or busy, and it passes.")
	case lane.Position.Owner == "" && lane.Backlog > 0:
		add(true, " is read by no ingester: its records wait.", "Start an ingester, or see why the running ones do not own the lane.")
	}
	if missing > 0 {
		add(true, fmt.Sprintf(": the table lacks %s messages that were stored.", number(missing)),
			"Find what is missing with sluice verify before the stream purges it.")
	}
	switch used := lane.Used(); {
	case used > almostOut:
		add(true, fmt.Sprintf(" uses %.0f %% of its disk budget: posts are about to be rejected with 429.", used),
			"Get ClickHouse to store again, or raise the budget (--stream-max-bytes).")
	case used > tight:
		add(false, fmt.Sprintf(" uses %.0f %% of its disk budget.", used), "In normal operation it is at most half, as history.")
	}
	return all
}
