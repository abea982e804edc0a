package simulate

import (
	"math/rand/v2"
	"time"

	"sluice/pkg/broker"
)

// Serve calls use with a simulated JetStream on which nothing goes wrong. It has to be
// called in a bubble of testing/synctest; settle is synctest.Wait.
func Serve(settle func(), use func(broker.Broker)) {
	d := &driver{random: rand.New(rand.NewPCG(1, 1)), began: time.Now(), settle: settle, healed: true, rare: map[string]int{}, wake: make(chan struct{}, 1)}
	p := &process{driver: d, name: "test", connected: true, losses: map[*func()]struct{}{}, cancel: func() {}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer d.nudge()
		use(&connection{p, newServer()})
	}()
	d.run(func() bool { return isClosed(done) })
}
