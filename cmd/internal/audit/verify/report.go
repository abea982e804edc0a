package verify

import (
	"slices"
	"time"

	"sluice/pkg/flow"
)

// Report is what was found.
type Report struct {
	At       time.Time `json:"at"`
	OK       bool      `json:"ok"` // every sum holds
	Lanes    []Lane    `json:"lanes"`
	Recount  []string  `json:"recount,omitempty"`  // days whose counters are to be recomputed
	Problems []string  `json:"problems,omitempty"` // what is wrong beyond single records
	Notes    []string  `json:"notes,omitempty"`    // what could not be looked at, and what looks wrong and is right
	Findings []Finding `json:"findings,omitempty"` // the first of them, see Config.Limit
	Found    uint64    `json:"found"`              // how many there are

	// Rows beyond the first of a record that has several, not merged yet.
	Duplicated uint64 `json:"duplicated,omitempty"`

	Repeats []Finding `json:"repeats,omitempty"` // the first records that were sent again, see Config.Repeats
}

// recount names a day whose counters are to be recomputed.
func (r *Report) recount(day string) {
	if !slices.Contains(r.Recount, day) {
		r.Recount = append(r.Recount, day)
		slices.Sort(r.Recount)
	}
}

// Lane is the account of one lane.
type Lane struct {
	Lane    int    `json:"lane"`
	First   uint64 `json:"first"`      // first message that was accounted for
	Settled uint64 `json:"checkpoint"` // last message that must be stored or dead-lettered
	Last    uint64 `json:"last"`       // last message when the account began
	InDoubt uint64 `json:"in_doubt"`   // records of a block that is claimed and may be stored: part of the backlog
	Changes uint64 `json:"changes"`    // messages that are changes of users and fields, not records

	// What became of the records of this life of the lane before First, by the
	// totals in its position; and the rows that the table has of them.
	Purged flow.Totals `json:"purged"`
	Before uint64      `json:"before"`

	ForgottenBefore uint64 `json:"forgotten_before,omitempty"` // rows of these that were removed by a receipt

	Tally
	Minutes []Minute `json:"minutes"`
}

// Minute is the account of the records accepted within one minute.
type Minute struct {
	Minute time.Time `json:"minute"`
	Tally
}

// Tally counts records by what became of them.
type Tally struct {
	Accepted uint64 `json:"accepted"`
	Stored   uint64 `json:"stored"`
	Repeated uint64 `json:"deduplicated"` // known already, and not stored again
	Dead     uint64 `json:"dead_lettered"`
	Void     uint64 `json:"void,omitempty"` // of entries that came too late to count, and were not answered with OK
	Waiting  uint64 `json:"backlog"`
	Replayed uint64 `json:"replayed,omitempty"` // dead-lettered, and sent again as another message
	Dropped  uint64 `json:"dropped,omitempty"`  // dead-lettered, and given up

	Forgotten uint64 `json:"forgotten,omitempty"` // removed from everywhere, by a receipt
	Missing   uint64 `json:"missing"`
	Doubled   uint64 `json:"doubled"`           // rows too many; no part of accepted
	Changed   uint64 `json:"changed,omitempty"` // of those stored, with other content than was accepted
}

// balanced tells whether every record is accounted for, once.
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

// Total is the account of all lanes.
func (r Report) Total() Tally {
	var t Tally
	for _, l := range r.Lanes {
		t.add(l.Tally)
	}
	return t
}

// Purged is the sum of what the totals count beyond what was read.
func (r Report) Purged() flow.Totals {
	var sum flow.Totals
	for _, l := range r.Lanes {
		sum.Add(l.Purged)
	}
	return sum
}

// Kinds of findings.
const (
	Repeated  = "deduplicated" // sent again, which is no fault
	Missing   = "missing"      // accepted, and neither stored nor dead-lettered
	Doubled   = "doubled"      // more rows than one, or a row beside a dead letter
	Changed   = "changed"      // stored with other content
	Unknown   = "unknown"      // a row of no record that was accepted
	Miscounts = "miscounts"    // a message that holds other records than its header says
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

// minutes are the tallies of a lane.
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
