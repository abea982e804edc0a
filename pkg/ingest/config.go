package ingest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/option"
	"sluice/pkg/record"
)

// Config configures blocks and the handling of failures. Its flags are those of the command line.
type Config struct {
	MaxRows  int           `name:"block-rows" default:"500000" help:"Close a block at this many records, at most 1000000."`
	MaxBytes int           `name:"block-bytes" default:"0" help:"Close a block at this many bytes of memory, at most 128 MiB; 0: an eighth of --memory, shared by the held lanes, at most 128 MiB."` // without --memory, SharedBytes is divided
	MaxAge   time.Duration `name:"block-age" default:"500ms" help:"Close a block this long after its first record; a small block at most 1.8 times as long, minus the duration of an insert."`
	Together int           `name:"block-inserts" default:"2" help:"Concurrent inserts of pieces of a block, at most 8."`

	// Of all lanes; without --memory 32 MiB by default.
	KnownBytes int `name:"identity-memory" default:"0" help:"Deduplication memory in bytes, shared by the held lanes: less means more lookups in ClickHouse; 0: a sixteenth of --memory."`

	Owner string `kong:"-"` // unique name of this process in lane states and leases; required

	PieceBytes  int `kong:"-"`                    // minimum memory of a piece inserted concurrently with others, as each creates parts of its own; default 4 MiB, with a small MaxBytes an eighth of it and at least 64 KiB
	SharedBytes int `kong:"-" default:"33554432"` // memory of one block of all lanes together; a lane has two, with spare capacity and one message more

	RepeatWindow time.Duration `kong:"-" default:"10m"`      // deduplication window of requests whose records have no deduplication key, in stream time
	RepeatBytes  int           `kong:"-" default:"67108864"` // memory of such requests of all lanes; less shortens the window

	MinPause time.Duration `kong:"-" default:"250ms"` // minimum time between two blocks that are not full, times the held lanes, up to MaxAge: bounds the parts created in ClickHouse

	InsertTime time.Duration `kong:"-" default:"60s"` // timeout of the first insert; doubled after each timeout, up to ten times

	RetryFirst time.Duration `kong:"-" default:"200ms"` // pause after a first failure; it doubles up to RetryMax
	RetryMax   time.Duration `kong:"-" default:"30s"`
	HaltProbe  time.Duration `kong:"-" default:"15s"` // pause between attempts of a halted lane
	Rejections int           `kong:"-" default:"100"` // halt if ClickHouse rejects more rows than this of one block, or in a row: the cause is not the rows
	Unknowns   int           `kong:"-" default:"10"`  // halt after this many consecutive failures of unknown class
	GiveUp     time.Duration `kong:"-" default:"20s"` // release the lanes if ClickHouse is unreachable for this long and another process may reach it
	DrainTime  time.Duration `kong:"-" default:"5s"`  // limit of the wait for inserts in flight at shutdown

	Now    func() time.Time `kong:"-"` // default time.Now
	Random func() uint64    `kong:"-"` // default: the runtime's

	// Ready is closed once the warehouse is usable: until then records wait; changes of users and dataset fields do
	// not. nil: immediately.
	Ready <-chan struct{} `kong:"-"`

	// Heartbeat is called once per loop, with its name, and returns functions to call on
	// progress and at its end. While something fails, calls may be as far apart as
	// InsertTime and RetryMax together. Default none.
	Heartbeat func(loop string) (beat, end func()) `kong:"-"`
}

// A token of ClickHouse covers one native block: a block of more than about a million rows, or of 256 MiB,
// would be written as several, and a retry might store some of them twice. A block may exceed its limit by a
// message.
const (
	maxRows = 1_000_000

	// MaxBlockBytes bounds Config.MaxBytes.
	MaxBlockBytes = 128 << 20

	maxInserts = 8
)

// Check names a flag whose value exceeds one deduplication token.
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

// Deps are the dependencies of an Ingester. If no changes are published, those after DeadLetters may be nil:
// a lane halts at the first change.
type Deps struct {
	Leases      Leases
	Lanes       Lanes
	States      LaneStates
	Tables      Tables
	Index       Index
	DeadLetters DeadLetters
	Forgets     Forgets
	Expiry      Expiry // nil: nothing expires

	Audits       Audits
	Changes      Changes
	ChangeStates LaneStates // the checkpoint of changes
}

// Lanes reads the lanes of the stream.
type Lanes interface {
	// Open starts reading a lane at message from. The error is flow.ErrGap if a message
	// from there on is missing, or the lane never reached from-1.
	Open(ctx context.Context, lane int, from uint64) (Reader, error)

	// OpenChanges starts reading the changes of lane 0 at message from. The error is
	// flow.ErrGap if the lane never reached from-1.
	OpenChanges(ctx context.Context, from uint64) (Reader, error)

	// Heads calls f with the messages of a lane in a range, as far as it still holds them,
	// in order: with their headers, and perhaps their bodies.
	Heads(ctx context.Context, lane int, from, to uint64, f func(*flow.Entry) error) error

	// Revision returns the revision of a source's lane list, from the bucket's leader; 0
	// if none.
	Revision(ctx context.Context, source string) (uint64, error)
}

// Reader reads the messages of one lane, in order.
type Reader interface {
	// StreamID identifies the stream of the lane; a recreated stream has another one.
	StreamID() string

	// Created is the creation time of that stream, by the server's clock.
	Created() time.Time

	// Next waits for the next message. After an error only Close may be called.
	Next(ctx context.Context) (flow.Entry, error)

	Close()
}

// LaneStates keeps the lane states. *stream.LaneStates is the real one, for records and for changes.
type LaneStates interface {
	// Read returns the current state, not that of a lagging replica; the zero LaneState if
	// there is none.
	Read(ctx context.Context, lane int) (flow.LaneState, error)

	// CompareAndSwap replaces the state at next.Revision, and returns next with its new
	// Revision. It is durable if the error is nil. The error is flow.ErrNotOwner if the
	// state has changed; after any other, the outcome is unknown.
	CompareAndSwap(ctx context.Context, lane int, next flow.LaneState) (flow.LaneState, error)
}

// Tables stores blocks. *warehouse.DB is the real one.
type Tables interface {
	// Insert stores the rows of a block durably. Of all inserts with one token exactly one
	// is stored, whichever arrives first, even if their rows differ. The error is a
	// *flow.StoreError, after which any row may be stored, now or later. It is called
	// concurrently.
	Insert(ctx context.Context, b record.Block) error

	// Visible returns how many rows of a block are in the table, only those with its
	// StoredAt if set: the fewest and the most that replicas have. They differ while a
	// replica lags.
	Visible(ctx context.Context, b record.Block) (least, most uint64, err error)

	// PartsSince returns how many parts the deduplicating table got since a time of Clock:
	// never too few.
	PartsSince(ctx context.Context, then time.Time) (uint64, error)

	// Reaggregate feeds the aggregate tables with the stored rows of a block, perhaps twice.
	// Counters are not fed.
	Reaggregate(ctx context.Context, b record.Block) error

	// Clock returns ClickHouse's clock.
	Clock(ctx context.Context) (time.Time, error)
}

// Index looks up stored records, on every replica: rows of an unconfirmed insert count. *warehouse.DB is the real one.
type Index interface {
	// Known calls found for every stored row that may be the same record as one of these
	// rows, and perhaps for more, but not for one stored up to the expiry line.
	Known(ctx context.Context, c *record.Columns, rows []int, line string, found func(*flow.Identity)) error

	// Marks returns the progress of days. It includes everything stored before the call, by
	// any ingester.
	Marks(ctx context.Context, lane int, incarnation uint64, days []flow.SourceDay) (flow.Marks, error)

	// StaleSourceDays compares the source of Marks with all stored rows of an incarnation
	// of the lane, which is slow, and returns days on which it is behind.
	StaleSourceDays(ctx context.Context, lane int, incarnation uint64) ([]flow.SourceDay, error)

	// Inserting reports whether an insert of the lane is running, of any process, even a dead one.
	Inserting(ctx context.Context, lane int) (bool, error)

	// Last returns the last message of an incarnation of the lane with a row, 0 if none.
	// Incarnation 0 means the greatest one with rows, which it returns too.
	Last(ctx context.Context, lane int, incarnation uint64) (of, seq uint64, err error)

	// Incarnations returns those of the lane above a time with rows, oldest first, each
	// with its first such message. It is slow.
	Incarnations(ctx context.Context, lane int, above uint64) ([]flow.Incarnation, error)
}

// DeadLetters stores dead letters. *stream.DeadLetters is the real one.
type DeadLetters interface {
	// Publish dead-letters d durably before it returns nil. It is idempotent per
	// incarnation, sequence, and index. The error is flow.ErrFull if there is no space.
	Publish(ctx context.Context, d flow.Dead) error
}

// Expiry returns the expiry line. expiry.Of of the audit is the real one.
type Expiry interface {
	// Line returns the last stored day, such as 2025-11-21, whose rows may have expired,
	// whether or not they are merged away; empty if none.
	Line(ctx context.Context) (string, error)
}

// Forgets returns the orders to forget. *stream.Stream is the real one.
type Forgets interface {
	// Forgets returns every order written before the call. A later order changes the state
	// of each lane after it is written.
	Forgets(ctx context.Context) ([]flow.Forget, error)
}

// Changes applies changes of users and dataset fields.
type Changes interface {
	// Apply applies messages in order and idempotently: applied ones of the same
	// incarnation are skipped. After an error the same messages are passed again. If one
	// can never be applied it returns a *flow.StoreError of ClassPoison; then they are
	// passed one by one, and the failing one is dead-lettered. It returns the error of
	// claimed, which it calls after reading and before writing an entry.
	Apply(ctx context.Context, messages []flow.Message, claimed func(context.Context) error) error

	// Incarnation returns the greatest incarnation of applied changes.
	Incarnation(ctx context.Context) (uint64, error)
}

// Audits writes the audit of changes. *state.Auditor is the real one.
type Audits interface {
	// WriteDown audits the changes in messages and skips anything else. It is idempotent
	// for the same messages; its errors are those of Tables.Insert.
	WriteDown(ctx context.Context, messages []flow.Message) error
}

// Leases assigns lanes to this process. *lease.Leases is the real one.
type Leases interface {
	// Run calls work for every lane this process holds, each in its own goroutine and
	// never concurrently for one lane. The context of work ends when the lane is to be
	// released; others get it once work has returned or the lease has expired. If work
	// returns early, Run may call it again. Run returns when ctx is done and all work has
	// returned.
	//
	// After flow.ErrUnreachable other processes get the lane, and this one takes none for a
	// while.
	Run(ctx context.Context, work func(ctx context.Context, lane int) error) error

	Others() bool
}
