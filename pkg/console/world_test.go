package console_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/console"
	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/flow"
	"sluice/pkg/load/simulator"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

// world is a database with the records of a simulated engine, cluster-a, and the truth
// about it.
type world struct {
	db    *console.Reader
	truth *simulator.Truth
	start time.Time
	end   time.Time // end of the simulation

	inserter *warehouse.DB
	messages uint64 // stored messages of lane 0
}

// newWorld loads a world in shuffled order, so that related records are in different blocks.
func newWorld(t *testing.T) *world {
	t.Helper()
	server := clickhousetest.Start(t)
	clickhousetest.Exec(t, server, "CREATE DATABASE flow")
	w := &world{truth: new(simulator.Truth), start: time.Date(2025, 11, 21, 5, 0, 0, 0, time.UTC)}
	w.end = w.start.Add(2 * time.Hour)
	engine := simulator.New(simulator.Config{Seed: 23, Start: w.start, Every: 20 * time.Second, Instances: 300, Tenants: []string{"<default>", "a"}, Truth: w.truth})
	var all []string
	for r, more := engine.NextBy(w.end); more; r, more = engine.NextBy(w.end) {
		all = append(all, string(r.JSON))
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	var err error
	w.inserter, err = warehouse.Open(warehouse.Config{URL: server.URL("flow")}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	fatal(t, err)
	t.Cleanup(func() { w.inserter.Close() })
	fatal(t, w.inserter.Migrate(t.Context()))
	for records := range slices.Chunk(all, len(all)/5+1) {
		w.store(t, records...)
	}
	w.db, err = console.NewReader(server.URL("flow"))
	fatal(t, err)
	t.Cleanup(func() { fatal(t, w.db.Close()) })
	return w
}

// store inserts records as one block, with the next sequence of lane 0.
func (w *world) store(t *testing.T, records ...string) {
	t.Helper()
	w.messages++
	c := new(record.Columns)
	m := flow.Message{Seq: w.messages, Topic: "flow.0.record", Received: w.end, Source: "cluster-a", Body: []byte("[" + strings.Join(records, ",") + "]")}
	fatal(t, c.Append(&m))
	fatal(t, w.inserter.Insert(t.Context(), record.Block{Columns: c, To: c.Rows(), Token: fmt.Sprintf("FLOW_0@1:%d:0", w.messages), StoredAt: time.Now().UnixMilli()}))
}

// TestPagesMatchTheSimulation compares pages with the truth of a simulated engine.
func TestPagesMatchTheSimulation(t *testing.T) {
	w := newWorld(t)
	for name, test := range map[string]func(*testing.T, *world){
		"processes": testProcesses, "process": testProcess, "graph": testGraph, "pages": testPages, "tenants": testTenants, "query": testQuery, "tail": testTail,
		"elements and tenants": testElementsKeepToTenants, "pieces of a page": testPiecesOfAPage, "time limit": testTimeLimit, "refresh": testRefresh, "numbers": testNumbers, "lists": testLists,
		"open work": testOpenWork,
	} {
		t.Run(name, func(t *testing.T) { test(t, w) })
	}
}
