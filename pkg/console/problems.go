package console

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
)

// problem is a condition that needs attention.
type problem struct {
	Urgent bool   // records wait or are rejected until an operator acts
	Text   string // description
	Do     string // remedy
	Link   string // page with details
	Counts bool   // Text describes Count items, listed at Link
	Count  uint64
	Parts  []part // of Count: the largest, by process
}

// part is the share of one process in a count.
type part struct {
	Process, Link string
	Count         uint64
}

// Thresholds in percent: the alerts DeadLettersTight and DiskBudgetAlmostUsedUp use the same.
const (
	tight     = 80
	almostOut = 95
)

// behind is the maximum age of a backlog, as in its alert. lowDisk is the minimum free
// share of a disk, in percent.
const (
	behind  = time.Minute
	lowDisk = 10
)

// rejectedLately is how long after its last rejection a client is reported.
const rejectedLately = 5 * time.Minute

// isBusy reports whether ClickHouse rejected a statement for too many queries or memory.
func isBusy(err error) bool {
	var exception *clickhouse.Exception
	return errors.As(err, &exception) && slices.Contains([]int32{202, 241, 776, 777}, exception.Code)
}

// problems are the current problems, urgent ones first.
func problems(now *look, open *openCount, quiet time.Duration) (all []problem) {
	add := func(urgent bool, link, text, do string) {
		all = append(all, problem{Urgent: urgent, Text: text, Do: do, Link: link})
	}
	if free := share(float64(now.DiskFree), float64(now.DiskSize)); now.DiskSize > 0 && free < lowDisk {
		add(true, "#servers", fmt.Sprintf("The disk of ClickHouse has %s free, %.0f %%.", byteSize(now.DiskFree), free),
			"Free space, add a disk, or shorten retention (sluice migrate ttl). When the disk is full, records wait in the stream.")
	}
	if isBusy(now.Database) {
		add(false, "#servers", "ClickHouse rejects the console's queries for too many queries or too much memory: "+now.Database.Error(),
			"End heavy queries: system.processes lists them, KILL QUERY as admin ends them. Records are still accepted and stored.")
	} else if now.Database != nil {
		add(true, "#servers", "ClickHouse does not answer: "+now.Database.Error(),
			"Start it, or find out why it is busy. Records are accepted and wait in the stream.")
	}
	if now.NATS != nil {
		add(true, "#servers", "NATS does not answer: "+now.NATS.Error(),
			"Start it. Posts are rejected with 503; no acknowledged record is lost.")
	}
	for _, r := range now.Programs {
		if r.Err != nil {
			add(true, "#servers", fmt.Sprintf("The program at %s does not answer: %v", r.Address, r.Err),
				"Start it, or correct its address (--watch).")
		}
		for _, missing := range r.Missing {
			add(true, "#servers", fmt.Sprintf("The program at %s is not ready: %s: %s", r.Address, missing.Name, missing.Reason),
				"Fix the reported cause; it resumes automatically.")
		}
	}
	states, missing, ages := now.Programs.highest(laneStateMetric, "lane"), now.Programs.highest(missingMetric, "lane"), now.Programs.highest(laneAgeMetric, "lane")
	for _, lane := range now.Standing.Lanes {
		label := strconv.Itoa(lane.Number)
		all = append(all, laneProblems(lane, states[label], missing[label], time.Duration(ages[label]*float64(time.Second)))...)
	}
	if now.Programs.highest(changesMetric, "")[""] == 2 {
		add(true, "#servers", "Changes of users and dataset fields are not applied.", "The log of the ingester has the cause. Records are not affected.")
	}
	if dead := now.Standing.Dead; dead.Letters > 0 {
		text := fmt.Sprintf("%s dead letters to replay or drop.", number(dead.Letters))
		if dead.Letters == 1 {
			text = "1 dead letter to replay or drop."
		}
		add(false, "/dead", text, "Check the reasons first.")
		if used := share(float64(dead.Bytes), float64(dead.Max)); used > tight {
			add(true, "/dead", fmt.Sprintf("Dead letters use %.0f %% of their limit.", used),
				"At 100 %, a lane that must dead-letter a record halts. Replay or drop some, or raise --dead-max-bytes.")
		}
	}
	all = append(all, openProblems(open, quiet)...)
	for _, source := range now.Standing.Sources {
		if source.Moving != nil {
			add(false, "/sources", fmt.Sprintf("Source %q is moving to other lanes: its posts are rejected with 503 until the move ends.", source.Name),
				"If that command was interrupted, run it again: sluice lanes spread "+source.Name)
		}
	}
	for _, c := range now.Programs.rejects() {
		if now.At.Sub(c.Last) < rejectedLately {
			remedy := "The log of the api has the route."
			if c.Status == http.StatusUnauthorized {
				remedy = "Its token is invalid: create one with sluice source add or rotate."
			}
			add(false, "/sources#rejected", fmt.Sprintf("Client %s at %s is rejected: %s (%d), %s.", c.Subject, c.Address, c.Code, c.Status, c.often()), remedy)
		}
	}
	stale := now.Programs.highest(staleMetric, "source")
	for _, what := range slices.Sorted(maps.Keys(stale)) {
		if stale[what] > 0 {
			add(false, "#servers", "The api cannot load the newest "+what+": it uses the previous ones.", "The log of the api has the cause.")
		}
	}
	slices.SortStableFunc(all, func(a, b problem) int { return cmp.Compare(rank(a), rank(b)) })
	return all
}

func (c rejectedClient) often() string {
	if c.Count == 1 {
		return "once"
	}
	return fmt.Sprintf("%s times within %s", number(c.Count), span(max(c.Last.Sub(c.First).Round(time.Second), time.Second)))
}

func rank(p problem) int {
	if p.Urgent {
		return 0
	}
	return 1
}

func laneProblems(lane Lane, state, missing float64, age time.Duration) (all []problem) {
	name := fmt.Sprintf("Lane %d", lane.Number)
	add := func(urgent bool, text, do string) {
		all = append(all, problem{Urgent: urgent, Text: name + text, Do: do, Link: "#lanes"})
	}
	switch {
	case state == 2:
		add(true, " is halted: its records wait.", "The log of the ingester has the cause. Fix it; the lane resumes automatically.")
	case state == 1:
		add(false, " is retrying the same block.", "ClickHouse is usually down or busy; the lane resumes automatically.")
	case lane.Position.Owner == "" && lane.Backlog > 0:
		add(true, " is read by no ingester: its records wait.", "Start an ingester, or find out why the running ones do not own the lane.")
	}
	if age > behind && lane.Backlog > 0 {
		add(false, fmt.Sprintf(" is %s behind: %s messages wait.", span(age), number(lane.Backlog)), "Find out why ClickHouse or the ingester is busy; more ingesters and lanes raise throughput.")
	}
	if missing > 0 {
		add(true, fmt.Sprintf(": the table lacks %s messages that were stored.", number(missing)),
			"Find what is missing with sluice verify before the stream purges it.")
	}
	switch used := lane.Used(); {
	case used > almostOut:
		add(true, fmt.Sprintf(" uses %.0f %% of its disk budget: posts are about to be rejected with 429.", used),
			"Restore ClickHouse, or raise the budget (--stream-max-bytes).")
	case used > tight:
		add(false, fmt.Sprintf(" uses %.0f %% of its disk budget.", used), "Normal is at most 50 %.")
	}
	return all
}

// openKinds are the kinds that openWork counts, with their lists.
var openKinds = []struct{ kind, text, do, list string }{
	{"incident", "Open incidents", "Fix the cause, then resolve them.", "/incidents?state=OPEN"},
	{"stuck", "Active instances without an event for %s", "They wait for a message, a timer, or a worker that is not running.", "/instances?state=ACTIVE&quiet=%s"},
	{"task", "User tasks past their due date", "Assign or complete them.", "/tasks?state=CREATED&overdue=1"},
	{"timer", "Timers past their due date", "The broker lags or no longer exports.", "/timers?state=WAITING&overdue=1"},
	{"job", "Jobs past their deadline", "The worker is slow or gone.", "/jobs?overdue=1"},
}

// openProblems are the problems of the last count of open work. They link to lists as of
// that count, so that the numbers match.
func openProblems(last *openCount, quiet time.Duration) (all []problem) {
	if last == nil {
		return nil
	}
	for _, k := range openKinds {
		p, sums := problem{Text: k.text, Do: k.do, Counts: true, Link: k.list + "&any=1&as_of=" + last.At.UTC().Format(time.RFC3339)}, map[string]uint64{}
		if k.kind == "stuck" {
			p.Text, p.Link = fmt.Sprintf(p.Text, span(quiet)), fmt.Sprintf(p.Link, quiet)
		}
		for _, r := range last.Rows {
			if r.Kind == k.kind {
				p.Count += r.Count
				sums[r.Process] += r.Count
			}
		}
		for _, process := range slices.SortedFunc(maps.Keys(sums), func(a, b string) int {
			return cmp.Or(cmp.Compare(sums[b], sums[a]), cmp.Compare(a, b))
		})[:min(len(sums), 3)] {
			if process != "other" && len(sums) > 1 { // "other" has no list
				p.Parts = append(p.Parts, part{process, p.Link + "&id=" + url.QueryEscape(cmp.Or(process, emptyValue)), sums[process]})
			}
		}
		if p.Count > 0 {
			all = append(all, p)
		}
	}
	return all
}
