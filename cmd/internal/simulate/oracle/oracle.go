// Package oracle judges a history by what its clients wrote down. It shares nothing with
// the programs: it imports the standard library only.
package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Record names a record that a client has posted: no two different records of one source
// have the same number.
type Record struct {
	Source string
	Number int64
}

// Notes are what clients know about their records.
type Notes struct {
	posted map[Record]*note
}

type note struct {
	acknowledged bool
	rejected     bool   // the tables reject it
	doubted      bool   // a set-back may lose or repeat it
	request      string // the last request with it
}

// NewNotes has no records.
func NewNotes() *Notes { return &Notes{posted: map[Record]*note{}} }

// Posted notes that a record is being posted; rejected, that the tables will reject it.
func (n *Notes) Posted(r Record, rejected bool, request string) {
	if n.posted[r] == nil {
		n.posted[r] = &note{rejected: rejected}
	}
	n.posted[r].request = request
}

// Doubt notes that a set-back may have lost a record that has no identity and is not sent
// again, or repeats it.
func (n *Notes) Doubt(r Record) {
	if is := n.posted[r]; is != nil {
		is.doubted = true
	}
}

// Acknowledged notes that a record was answered with success.
func (n *Notes) Acknowledged(r Record) { n.posted[r].acknowledged = true }

// Count is how many records were posted, and how many acknowledged.
func (n *Notes) Count() (posted, acknowledged int) {
	for _, is := range n.posted {
		if is.acknowledged {
			acknowledged++
		}
	}
	return len(n.posted), acknowledged
}

// Verdict is what a history did to the records.
type Verdict struct {
	Lost       []string // acknowledged, and neither stored nor dead-lettered
	Duplicated []string // stored more than once, or stored and dead-lettered
	Strange    []string // stored though never posted, or though the tables reject it
}

// OK says whether every promise was kept.
func (v Verdict) OK() bool { return len(v.Lost)+len(v.Duplicated)+len(v.Strange) == 0 }

func (v Verdict) String() string {
	text := fmt.Sprintf("%d lost, %d duplicated, %d strange", len(v.Lost), len(v.Duplicated), len(v.Strange))
	for _, list := range [][]string{v.Lost, v.Duplicated, v.Strange} {
		for i, name := range list {
			if i == 5 {
				text += " …"
				break
			}
			text += "\n\t" + name
		}
	}
	return text
}

// Judge compares the notes with the rows that are stored and the records that are
// dead-lettered.
func (n *Notes) Judge(rows, dead []Record) (v Verdict) {
	stored, letters := count(rows), count(dead)
	for _, r := range slices.SortedFunc(maps.Keys(n.posted), compare) {
		is := n.posted[r]
		name := fmt.Sprintf("%s/%d (%s)", r.Source, r.Number, is.request)
		if is.doubted {
			continue
		}
		switch kept := stored[r] + letters[r]; {
		case kept == 0 && is.acknowledged:
			v.Lost = append(v.Lost, "lost: "+name)
		case stored[r] > 1 || stored[r] > 0 && letters[r] > 0: // a record that is rejected and resent has a letter for each time
			v.Duplicated = append(v.Duplicated, fmt.Sprintf("%d rows, %d dead letters: %s", stored[r], letters[r], name))
		case stored[r] > 0 && is.rejected, letters[r] > 0 && !is.rejected:
			v.Strange = append(v.Strange, fmt.Sprintf("%d rows, %d dead letters: %s", stored[r], letters[r], name))
		}
	}
	for r := range stored {
		if n.posted[r] == nil {
			v.Strange = append(v.Strange, fmt.Sprintf("never posted: %s/%d", r.Source, r.Number))
		}
	}
	slices.Sort(v.Strange)
	return v
}

func compare(a, b Record) int {
	return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Number, b.Number))
}

func count(records []Record) map[Record]int {
	counts := map[Record]int{}
	for _, r := range records {
		counts[r]++
	}
	return counts
}
