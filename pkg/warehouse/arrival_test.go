package warehouse_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/load/simulator"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

// unmerged stops merges of records until the test ends.
func unmerged(t *testing.T, db *warehouse.DB) {
	t.Helper()
	query(t, db, "SYSTEM STOP MERGES {db}.records")
	t.Cleanup(func() { query(t, db, "SYSTEM START MERGES {db}.records") })
}

// sent is a record in flight.
type sent struct {
	source   string
	position int64
	at       int64
	json     string
}

func inOrder(all []sent) []sent { return all }

func backwards(all []sent) []sent {
	all = slices.Clone(all)
	slices.Reverse(all)
	return all
}

func shuffled(all []sent) []sent {
	all = slices.Clone(all)
	r := rand.New(rand.NewPCG(1, 2))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// again resends a third of the records.
func again(all []sent) []sent { return append(slices.Clone(all), all[len(all)/3:2*len(all)/3]...) }

// late moves every seventh record to the end.
func late(all []sent) []sent {
	var first, last []sent
	for i, r := range all {
		if i%7 == 3 {
			last = append(last, r)
		} else {
			first = append(first, r)
		}
	}
	return append(first, last...)
}

// store inserts records in blocks, each with a message of every source, numbered from first. It
// returns the next number.
func store(t *testing.T, db *warehouse.DB, first uint64, all []sent, block int) uint64 {
	t.Helper()
	for records := range slices.Chunk(all, block) {
		bodies, at := map[string][]string{}, received
		for _, r := range records {
			bodies[r.source] = append(bodies[r.source], r.json)
			if then := time.UnixMilli(r.at); then.Sub(at) > 24*time.Hour {
				at = then // no record arrives before it was written
			}
		}
		c, next := new(record.Columns), first
		for _, source := range slices.Sorted(maps.Keys(bodies)) {
			m := flow.Message{Seq: next, Topic: "flow.0.record", Received: at, Source: source, Body: []byte("[" + strings.Join(bodies[source], ",") + "]")}
			fatal.If(t, c.Append(&m))
			next++
		}
		b := record.Block{Columns: c, To: c.Rows(), Token: fmt.Sprintf("FLOW_0@1:%d-%d:0", first, next-1), StoredAt: storedAt}
		fatal.If(t, db.Insert(t.Context(), b))
		first = next
	}
	return first
}

// caller is the key of the calling instance, empty without one.
func caller(i *simulator.Instance) string {
	if i.ParentInstance < 0 {
		return ""
	}
	return number(i.ParentInstance)
}

const null = `\N`

func number(n int64) string { return strconv.FormatInt(n, 10) }

func moment(ms int64) string {
	if ms == 0 {
		return null
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02 15:04:05.000")
}

func between(from, to int64) string {
	if from == 0 || to == 0 {
		return null
	}
	return number(to - from)
}

// escaped is a text in ClickHouse's TabSeparated format.
func escaped(s string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\t", `\t`, `'`, `\'`).Replace(s)
}

func lateness(j *simulator.Job) int64 {
	if j.CompletedAt == 0 || j.Deadline < 0 {
		return 0
	}
	return max(0, j.CompletedAt-j.Deadline)
}
