package ingest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/trace"

	"sluice/pkg/flow"
	"sluice/pkg/option"
	"sluice/pkg/record"
)

// Config says how blocks are made and how failures are met. Its flags are those of
// the command line.
type Config struct {
	MaxRows  int           `name:"block-rows" default:"200000" help:"Close a block at so many records, at most 1000000."`
	MaxBytes int           `name:"block-bytes" default:"0" help:"Close a block at so many bytes of memory, at most 128 MiB; 0 for an eighth of --memory, shared by the lanes worked on, and no more than that."` // without a --memory SharedBytes is divided
	MaxAge   time.Duration `name:"block-age" default:"500ms" help:"Close a block so long after its first record."`
	Together int           `name:"block-inserts" default:"2" help:"Insert so many pieces of a block at once, at most 8; 1 inserts one after the other."`

	// For the identities of stored records of all lanes; without a --memory 32 MiB by
	// default.
	KnownBytes int `name:"identity-memory" default:"0" help:"Deduplication memory in bytes, shared by the lanes worked on: less means more lookups in ClickHouse; 0 for a sixteenth of --memory."`

	Owner string `kong:"-"` // names this process in lane states, as its leases do; unique per process; has to be given

	PieceBytes  int `kong:"-"`                    // least memory of a piece that is inserted beside others, in bytes: each makes parts of its own in ClickHouse; default 4 MiB, with a small MaxBytes an eighth of it and at least 64 KiB
	SharedBytes int `kong:"-" default:"33554432"` // what one block of each lane may hold together; a lane has two, with room to grow and one message more

	RepeatWindow time.Duration `kong:"-" default:"10m"`      // deduplication window: how long a request is known whose records have no identity of their own, in stream time
	RepeatBytes  int           `kong:"-" default:"67108864"` // what lanes together may hold of such requests; less shortens the window

	MinPause time.Duration `kong:"-" default:"250ms"` // least time between two blocks that are not full, times the lanes worked on, up to MaxAge: bounds the parts made in ClickHouse; of few rows, four times what the last insert took when that is more

	InsertTime time.Duration `kong:"-" default:"60s"` // how long a first attempt to insert may take; one that took longer gets twice as much next time, up to ten times

	RetryFirst time.Duration `kong:"-" default:"200ms"` // pause after a first failure; it doubles up to RetryMax
	RetryMax   time.Duration `kong:"-" default:"30s"`
	HaltProbe  time.Duration `kong:"-" default:"15s"` // pause between two tries of a halted lane
	Rejections int           `kong:"-" default:"100"` // halt when ClickHouse rejects more rows than this of one block, or in a row: then it is not the rows
	Unknowns   int           `kong:"-" default:"10"`  // halt after so many failures in a row that are of no known class
	GiveUp     time.Duration `kong:"-" default:"20s"` // give the lanes up when ClickHouse cannot be reached for so long and another process may reach it
	DrainTime  time.Duration `kong:"-" default:"5s"`  // how long a stop waits for the insert in flight

	Now    func() time.Time `kong:"-"` // the clock of this process; default time.Now
	Random func() uint64    `kong:"-"` // its random source; default that of the runtime

	// Tracer makes a span of each block; nothing is traced when it is nil.
	Tracer trace.Tracer `kong:"-"`

	// Ready is closed once the warehouse can be used: until then records wait, and
	// changes of users and dataset fields do not. At once when it is nil.
	Ready <-chan struct{} `kong:"-"`

	// Heartbeat is asked once per loop, by its name, for a function to call as
	// long as it turns, and one to call when it has ended. While something fails, calls
	// may be as far apart as InsertTime and RetryMax together.
	// Default none.
	Heartbeat func(loop string) (beat, end func()) `kong:"-"`
}

// A token of ClickHouse covers one native block: it would write one of more than
// about a million rows, or of 256 MiB, as several, and a repeat might store some
// of them twice. A block may go beyond its limit by a message.
const (
	maxRows = 1_000_000

	// MaxBlockBytes bounds Config.MaxBytes.
	MaxBlockBytes = 128 << 20

	maxInserts = 8
)

// Check names the flag whose value one deduplication token does not cover.
func (c Config) Check() error {
	switch {
	case c.MaxRows > maxRows:
		return fmt.Errorf("--block-rows %d: maximum %d (one deduplication token)", c.MaxRows, maxRows)
	case c.MaxBytes > MaxBlockBytes:
		return fmt.Errorf("--block-bytes %d: maximum %d (one deduplication token)", c.MaxBytes, MaxBlockBytes)
	case c.Together < 1 || c.Together > maxInserts:
		return fmt.Errorf("--block-inserts %d: 1 to %d", c.Together, maxInserts)
	}
	return nil
}

func (c Config) withDefaults() Config {
	option.Defaults(&c)
	if c.PieceBytes <= 0 && 0 < c.MaxBytes && c.MaxBytes < 32<<20 {
		c.PieceBytes = max(c.MaxBytes/8, 64<<10)
	}
	if c.PieceBytes <= 0 {
		c.PieceBytes = 4 << 20
	}
	if c.KnownBytes <= 0 {
		c.KnownBytes = 32 << 20
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Random == nil {
		c.Random = rand.Uint64
	}
	if c.Heartbeat == nil {
		c.Heartbeat = func(string) (func(), func()) { return func() {}, func() {} }
	}
	return c
}

// Deps are what an Ingester works with. Where no changes are published, those
// behind DeadLetters may be nil: a lane halts at the first change.
type Deps struct {
	Leases      Leases
	Lanes       Lanes
	States      LaneStates
	Tables      Tables
	Index       Index
	DeadLetters DeadLetters
	Forgets     Forgets
	Expiry      Expiry // nothing expires when nil

	Audits       Audits
	Changes      Changes
	ChangeStates LaneStates // the checkpoint of changes
}

// Lanes is where messages come from: the stream.
type Lanes interface {
	// Open begins to read a lane with the message numbered from, or with the
	// first one to come after it. The error is flow.ErrGap when a message
	// from there on is gone, or when the lane has never been as far as from-1.
	Open(ctx context.Context, lane int, from uint64) (Reader, error)

	// OpenChanges begins to read the changes of lane 0, from the message numbered
	// from on. The error is flow.ErrGap when the lane has never been as far as
	// from-1.
	OpenChanges(ctx context.Context, from uint64) (Reader, error)

	// Heads calls f with the messages of a lane from one to another, as many as
	// it still holds and in order: what their headers say, with or without their
	// bodies.
	Heads(ctx context.Context, lane int, from, to uint64, f func(*flow.Entry) error) error

	// Revision returns that of the list of a source's lanes, as the leader of its
	// bucket has it; 0 when there is none.
	Revision(ctx context.Context, source string) (uint64, error)
}

// Reader gives the messages of one lane, in order.
type Reader interface {
	// StreamID names the stream behind the lane for ever, the time of its
	// creation included: another stream of the same name has another one.
	StreamID() string

	// Created is when that stream was created, by the server's clock.
	Created() time.Time

	// Next waits for the next message. After an error only Close may be
	// called.
	Next(ctx context.Context) (flow.Entry, error)

	Close()
}

// LaneStates keeps the lane state of each lane. *stream.LaneStates is the real one,
// for records and for changes.
type LaneStates interface {
	// Read returns the state as it is, not as a replica last received it. A lane
	// that has none yet has the zero LaneState.
	Read(ctx context.Context, lane int) (flow.LaneState, error)

	// CompareAndSwap replaces the state that next was read from, told by its
	// Revision, and returns next with its new Revision. It is durable when the
	// error is nil. The error is flow.ErrNotOwner when the state has changed;
	// after any other, it may be replaced or not.
	CompareAndSwap(ctx context.Context, lane int, next flow.LaneState) (flow.LaneState, error)
}

// Tables is where blocks go. *warehouse.DB is the real one.
type Tables interface {
	// Insert stores the rows of a block. They are durable when it returns nil. Of
	// all inserts with one token exactly one is stored, whichever arrives first,
	// also when their rows differ. The error is a *flow.StoreError, after which
	// any row may be stored, now or later, or not. It is called concurrently.
	Insert(ctx context.Context, b record.Block) error

	// Visible returns how many rows of a block are in the table, and how many
	// parts the table that remembers tokens has got since a time of Clock: rather
	// too many than too few; 0 when that is zero. If the block has a StoredAt, only
	// rows that carry it are counted.
	Visible(ctx context.Context, b record.Block, since time.Time) (rows, parts uint64, err error)

	// Refold makes sure that the aggregate tables have received the rows of a
	// block that are stored; they may receive them twice. Counters do not.
	Refold(ctx context.Context, b record.Block) error

	// Clock returns ClickHouse's clock.
	Clock(ctx context.Context) (time.Time, error)
}

// Index tells which records are stored. *warehouse.DB is the real one.
type Index interface {
	// Known calls found for every stored row that may be the same record as one
	// of these rows, and perhaps for more.
	Known(ctx context.Context, c *record.Columns, rows []int, found func(*flow.Identity)) error

	// Marks returns how far days reach. Everything that was stored before the
	// call, by any ingester, is in it.
	Marks(ctx context.Context, lane int, incarnation uint64, days []flow.SourceDay) (flow.Marks, error)

	// StaleSourceDays compares what Marks is read from with the stored rows of an
	// incarnation of the lane, which takes its time, and returns the days that
	// are lower there.
	StaleSourceDays(ctx context.Context, lane int, incarnation uint64) ([]flow.SourceDay, error)

	// Last returns the last message of an incarnation of the lane that has a row,
	// 0 when there is none. For incarnation 0 it is the greatest that has rows,
	// which is returned too.
	Last(ctx context.Context, lane int, incarnation uint64) (of, seq uint64, err error)

	// Incarnations returns those of the lane above a time that have rows, oldest
	// first, each with the first message that has one. It takes its time.
	Incarnations(ctx context.Context, lane int, above uint64) ([]flow.Incarnation, error)
}

// DeadLetters keeps what cannot be stored. *stream.DeadLetters is the real
// one.
type DeadLetters interface {
	// SetAside keeps d durably before it returns nil. It is idempotent per
	// incarnation of the lane, sequence and index. The error is flow.ErrFull when
	// there is no room for it.
	SetAside(ctx context.Context, d flow.Dead) error
}

// Expiry says which rows may have expired. expiry.Of of the audit is the real one.
type Expiry interface {
	// Line returns the last stored day, such as 2025-11-21, of which rows may have
	// expired, merged away or not; empty when none have.
	Line(ctx context.Context) (string, error)
}

// Forgets says which records are skipped. *stream.Stream is the real one.
type Forgets interface {
	// Forgets returns every order that was written before the call. One that is
	// written later changes the state of each lane afterwards.
	Forgets(ctx context.Context) ([]flow.Forget, error)
}

// Changes applies changes of users and dataset fields.
type Changes interface {
	// Apply applies messages in order, and is idempotent: those of the same
	// incarnation of the lane that were applied are skipped. After an error the
	// same messages come again. When a message can never be applied, it
	// returns a *flow.StoreError of ClassPoison; then the messages come
	// again one by one, and the one it rejects is dead-lettered.
	Apply(ctx context.Context, messages []flow.Message) error

	// Incarnation returns the greatest one that changes were applied of.
	Incarnation(ctx context.Context) (uint64, error)
}

// Audits is where it is written down who changed what. *state.Auditor is the real
// one.
type Audits interface {
	// WriteDown writes down the changes in messages, and passes over what is no
	// change. It is idempotent for the same messages; its errors are those of
	// Tables.Insert.
	WriteDown(ctx context.Context, messages []flow.Message) error
}

// Leases says which lanes this process works on. *lease.Leases is the real one.
type Leases interface {
	// Run calls work for every lane this process comes to hold, in a goroutine
	// of its own and never twice at once for the same lane. The context of
	// work ends when the lane is to be given up; others get it when work has
	// returned, or when the lease has run out. When work returns before, Run
	// may call it again. Run returns when ctx is done and all work has
	// returned.
	//
	// When work returns flow.ErrUnreachable, other processes get the lane, and
	// this one no lanes for a while.
	Run(ctx context.Context, work func(ctx context.Context, lane int) error) error

	// Others says whether another process could take a lane.
	Others() bool
}
