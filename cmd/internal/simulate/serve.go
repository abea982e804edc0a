package simulate

import (
	"fmt"
	"math/rand/v2"
	"time"

	"sluice/pkg/broker"
	"sluice/pkg/ingest"
)

// Serve calls use with a simulated JetStream without faults, in a bubble of
// testing/synctest. settle is synctest.Wait.
func Serve(settle func(), use func(broker.Broker)) {
	serve(settle, func(p *process) { use(&connection{p, newServer(p.driver)}) })
}

// Tables is a warehouse with the faults that tests inject.
type Tables struct {
	ingest.Tables
	ingest.Index
	Refuse   func(bool)    // whether the view of counters rejects rows
	Limit    func(bool)    // whether a constraint rejects keys that end in 3
	Expire   func()        // merges expired rows away; the retention is two days
	SetBack  func()        // empties it
	Lag      func(bool)    // whether a replica lags
	Counters func() string // rows in counters
}

// ServeTables is Serve for a simulated warehouse.
func ServeTables(settle func(), use func(Tables)) {
	serve(settle, func(p *process) {
		w := newWarehouse(p.driver)
		empty, db := w.tables.clone(), client{p, w}
		use(Tables{
			Tables: db, Index: db, Refuse: func(is bool) { w.refuses = is }, Limit: func(is bool) { w.strict = is }, Expire: func() { w.expire() },
			SetBack: func() { w.tables = empty.clone() },
			Lag: func(is bool) {
				if w.lagging = nil; is {
					now := w.clone()
					w.lagging = &now
				}
			},
			Counters: func() string { return fmt.Sprint(len(w.rows[counters])) },
		})
	})
}

func serve(settle func(), use func(*process)) {
	d := &driver{random: rand.New(rand.NewPCG(1, 1)), began: time.Now(), settle: settle, healed: true, rare: map[string]int{}, wake: make(chan struct{}, 1)}
	p := &process{driver: d, name: "test", connected: true, drawn: map[uint64]uint64{}, losses: map[*func()]struct{}{}, cancel: func() {}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer d.nudge()
		use(p)
	}()
	d.run(func() bool { return isClosed(done) })
}
