// Package oracle judges a history by its clients' notes. It shares no code with the
// programs: it imports only the standard library.
package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Record identifies a posted record: different records of one source have different
// numbers.
type Record struct {
	Source string
	Number int64
}

// Notes are the clients' notes of their records.
type Notes struct {
	posted map[Record]*note
}

type note struct {
	acknowledged bool
	rejected     bool   // the tables reject it
	constrained  bool   // they do for a while: each copy is a row or a dead letter
	doubted      bool   // a set-back may lose or duplicate it
	request      string // the last request that contained it
	open         int    // requests that may have been stored
}

func NewNotes() *Notes { return &Notes{posted: map[Record]*note{}} }

// Posted notes a record before its post, and whether the tables reject it, always or for a while.
func (n *Notes) Posted(r Record, rejected, constrained bool, request string) {
	if n.posted[r] == nil {
		n.posted[r] = &note{rejected: rejected, constrained: constrained}
	}
	n.posted[r].request = request
	n.posted[r].open++
}

// Refused notes that the answer to the last request says that nothing of it is stored.
func (n *Notes) Refused(r Record) { n.posted[r].open-- }

// Doubt excludes a record without an identity from the judgement: a set-back may have
// lost or duplicated it.
func (n *Notes) Doubt(r Record) {
	if is := n.posted[r]; is != nil {
		is.doubted = true
	}
}

func (n *Notes) Acknowledged(r Record) { n.posted[r].acknowledged = true }

// Count returns the number of posted and of acknowledged records.
func (n *Notes) Count() (posted, acknowledged int) {
	for _, is := range n.posted {
		if is.acknowledged {
			acknowledged++
		}
	}
	return len(n.posted), acknowledged
}

// Verdict lists broken promises.
type Verdict struct {
	Lost       []string // acknowledged, and neither stored nor dead-lettered
	Duplicated []string // stored more than once, or stored and dead-lettered
	Strange    []string // stored but never posted or always refused, stored but rejected, or dead-lettered but not rejected
}

// OK reports whether every promise was kept.
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

// Judge compares the notes with the stored rows and the dead letters.
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
		case stored[r] > 1 || stored[r] > 0 && letters[r] > 0 && !is.constrained: // a rejected record has a dead letter for each time it was sent
			v.Duplicated = append(v.Duplicated, fmt.Sprintf("%d rows, %d dead letters: %s", stored[r], letters[r], name))
		case kept > 0 && is.open == 0, stored[r] > 0 && is.rejected, letters[r] > 0 && !is.rejected && !is.constrained:
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
