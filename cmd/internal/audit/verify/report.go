package verify

import (
	"slices"
	"time"

	"sluice/pkg/flow"
)

type Report struct {
	At       time.Time `json:"at"`
	OK       bool      `json:"ok"` // every record is accounted for
	Lanes    []Lane    `json:"lanes"`
	Recount  []string  `json:"recount,omitempty"`  // days due for a recount
	Problems []string  `json:"problems,omitempty"` // faults beyond single records
	Notes    []string  `json:"notes,omitempty"`    // limits of this verification, and oddities that are no faults
	Findings []Finding `json:"findings,omitempty"` // the first ones, see Config.Limit
	Found    uint64    `json:"found"`              // number of all findings

	// Rows beyond the first of a record that has several, not merged yet.
	Duplicated uint64 `json:"duplicated,omitempty"`

	Repeats []Finding `json:"repeats,omitempty"` // the first deduplicated records, see Config.Repeats
}

func (r *Report) recount(day string) {
	if !slices.Contains(r.Recount, day) {
		r.Recount = append(r.Recount, day)
		slices.Sort(r.Recount)
	}
}

// Lane is the account of one lane.
type Lane struct {
	Lane    int    `json:"lane"`
	First   uint64 `json:"first"`      // first message read
	Settled uint64 `json:"checkpoint"` // last message that must be stored or dead-lettered
	Last    uint64 `json:"last"`       // last message when verify started
	InDoubt uint64 `json:"in_doubt"`   // part of the backlog: records of a claimed block, which may be stored
	Changes uint64 `json:"changes"`    // messages that change users or dataset fields

	// Records of this incarnation before First, by the totals of the lane state, and their
	// rows in the table.
	Purged flow.Totals `json:"purged"`
	Before uint64      `json:"before"`

	ForgottenBefore uint64 `json:"forgotten_before,omitempty"` // rows of these that sluice forget removed

	Tally
	Minutes []Minute `json:"minutes"`
}

// Minute is the account of the records accepted within one minute.
type Minute struct {
	Minute time.Time `json:"minute"`
	Tally
}

// Tally counts records by outcome.
type Tally struct {
	Accepted uint64 `json:"accepted"`
	Stored   uint64 `json:"stored"`
	Repeated uint64 `json:"deduplicated"`
	Dead     uint64 `json:"dead_lettered"`
	Void     uint64 `json:"void,omitempty"` // of late entries, which were never acknowledged
	Waiting  uint64 `json:"backlog"`
	Replayed uint64 `json:"replayed,omitempty"` // dead-lettered, and replayed as another message
	Dropped  uint64 `json:"dropped,omitempty"`  // dead-lettered, and dropped by an operator

	Forgotten uint64 `json:"forgotten,omitempty"` // removed by sluice forget
	Missing   uint64 `json:"missing"`
	Doubled   uint64 `json:"doubled"`           // surplus rows; not part of accepted
	Changed   uint64 `json:"changed,omitempty"` // of those stored: the row differs from the accepted record
}

// balanced reports whether every record is accounted for, once.
func (t Tally) balanced() bool {
	return t.Missing == 0 && t.Doubled == 0 && t.Changed == 0 &&
		t.Accepted == t.Stored+t.Repeated+t.Dead+t.Void+t.Waiting+t.Replayed+t.Dropped+t.Forgotten
}

func (t *Tally) add(o Tally) {
	t.Accepted += o.Accepted
	t.Stored += o.Stored
	t.Repeated += o.Repeated
	t.Dead += o.Dead
	t.Void += o.Void
	t.Waiting += o.Waiting
	t.Replayed += o.Replayed
	t.Dropped += o.Dropped
	t.Forgotten += o.Forgotten
	t.Missing += o.Missing
	t.Doubled += o.Doubled
	t.Changed += o.Changed
}

func (r Report) Total() Tally {
	var t Tally
	for _, l := range r.Lanes {
		t.add(l.Tally)
	}
	return t
}

// Purged is the sum of the lanes' Purged.
func (r Report) Purged() flow.Totals {
	var sum flow.Totals
	for _, l := range r.Lanes {
		sum.Add(l.Purged)
	}
	return sum
}

// Kinds of findings.
const (
	Repeated  = "deduplicated" // no fault
	Missing   = "missing"      // accepted, and neither stored nor dead-lettered
	Doubled   = "doubled"      // several rows, or a row beside a dead letter
	Changed   = "changed"      // the row differs from the accepted record
	Unknown   = "unknown"      // a row of no accepted record
	Miscounts = "miscounts"    // a message whose records contradict its header
)

// Finding is one record that is not accounted for.
type Finding struct {
	Kind     string    `json:"kind"`
	Lane     int       `json:"lane"`
	Sequence uint64    `json:"sequence"`
	Index    int       `json:"index"` // -1 for the whole message
	ID       string    `json:"id,omitempty"`
	Received time.Time `json:"received,omitzero"`
	Detail   string    `json:"detail,omitempty"`
}

// minutes are the tallies of a lane, by minutes since 1970.
type minutes map[int64]*Tally

func (m minutes) at(received time.Time) *Tally {
	key := received.Unix() / 60
	t := m[key]
	if t == nil {
		t = new(Tally)
		m[key] = t
	}
	return t
}

// into writes the tallies, oldest first, and their sum.
func (m minutes) into(l *Lane) {
	l.Minutes = []Minute{}
	for key, t := range m {
		l.Minutes = append(l.Minutes, Minute{time.Unix(key*60, 0).UTC(), *t})
		l.Tally.add(*t)
	}
	slices.SortFunc(l.Minutes, func(a, b Minute) int { return a.Minute.Compare(b.Minute) })
}
