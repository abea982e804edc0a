package ingest

import (
	"crypto/rand"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// Config says how blocks are made and how failures are met.
type Config struct {
	Owner string // names this process in positions; no other process may ever have the same; default random

	MaxRows  int           // close a block at so many rows; default 200 000
	MaxBytes int           // close a block at so many bytes of memory; default SharedBytes divided by the lanes worked on
	MaxAge   time.Duration // close a block so long after its first record; default 500 ms

	Together   int // insert a block that is full in so many pieces at once; 1 inserts one after the other; default 2
	PieceBytes int // least memory of such a piece, in bytes: each makes parts of its own in ClickHouse; default 4 MiB, with a small MaxBytes an eighth of it and at least 64 KiB

	SharedBytes int // what one block of each lane may hold together; a lane has two, with room to grow and one message more; default 32 MiB

	KnownBytes int // what lanes together may hold of the identities of stored records; less means more questions to ClickHouse; default 32 MiB

	RepeatWindow time.Duration // how long a repeated request is known whose records have no identity of their own, in stream time; default 10 min
	RepeatBytes  int           // what lanes together may hold of such requests; less means that they are forgotten before; default 64 MiB

	MinPause time.Duration // least time between two blocks that are not full, times the lanes worked on, up to MaxAge: bounds the parts made in ClickHouse; default 250 ms

	InsertTime time.Duration // how long a first attempt to insert may take; one that took longer gets twice as much next time, up to ten times; default 60 s

	RetryFirst time.Duration // pause after a first failure; it doubles up to RetryMost; default 200 ms
	RetryMost  time.Duration // default 30 s
	HaltProbe  time.Duration // pause between two tries of a halted lane; default 15 s
	Refusals   int           // halt when ClickHouse has refused more rows than this of one block, or in a row: then it is not the rows; default 100
	Unknowns   int           // halt after so many failures in a row that are of no known class; default 10
	GiveUp     time.Duration // give the lanes up when ClickHouse cannot be reached for so long and another process may reach it; default 20 s
	DrainTime  time.Duration // how long a stop waits for the insert in flight; default 5 s

	// Tracer makes a span of each block; nothing is traced when it is nil.
	Tracer trace.Tracer

	// Ready is closed once the warehouse can be used: until then records wait, and
	// changes of users and dataset fields do not. At once when it is nil.
	Ready <-chan struct{}

	// Heartbeat is asked once per loop, by its name, for a function to call as
	// long as it turns, and one to call when it has ended. While something fails, calls
	// may be as far apart as InsertTime and RetryMost together.
	// Default none.
	Heartbeat func(loop string) (beat, end func())
}

func (c Config) withDefaults() Config {
	if c.Owner == "" {
		c.Owner = rand.Text()
	}
	positive(&c.MaxRows, 200_000)
	positive(&c.Together, 2)
	if c.PieceBytes <= 0 && 0 < c.MaxBytes && c.MaxBytes < 32<<20 {
		c.PieceBytes = max(c.MaxBytes/8, 64<<10)
	}
	positive(&c.PieceBytes, 4<<20)
	positive(&c.SharedBytes, 32<<20)
	positive(&c.KnownBytes, 32<<20)
	positive(&c.RepeatWindow, 10*time.Minute)
	positive(&c.RepeatBytes, 64<<20)
	positive(&c.MaxAge, 500*time.Millisecond)
	positive(&c.MinPause, 250*time.Millisecond)
	positive(&c.InsertTime, time.Minute)
	positive(&c.RetryFirst, 200*time.Millisecond)
	positive(&c.RetryMost, 30*time.Second)
	positive(&c.HaltProbe, 15*time.Second)
	positive(&c.Refusals, 100)
	positive(&c.Unknowns, 10)
	positive(&c.GiveUp, 20*time.Second)
	positive(&c.DrainTime, 5*time.Second)
	if c.Heartbeat == nil {
		c.Heartbeat = func(string) (func(), func()) { return func() {}, func() {} }
	}
	return c
}

func positive[T int | time.Duration](v *T, fallback T) {
	if *v <= 0 {
		*v = fallback
	}
}
