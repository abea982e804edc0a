package flow

import (
	"errors"
	"time"
)

// Reasons for a request to have no Caller.
var (
	ErrTokenMissing    = errors.New("no access token")
	ErrTokenInvalid    = errors.New("the access token is not valid")           // unknown, malformed, expired, for another audience
	ErrTokenUnverified = errors.New("the access token cannot be verified now") // its keys are unavailable
)

// Outcomes of a Submission other than a Receipt. None of it is stored, except perhaps after ErrUnavailable: sending the
// same ID again settles it.
var (
	ErrFull        = errors.New("the stream is full")                   // the disk budget is used up
	ErrDeadShare   = errors.New("the source has too many dead letters") // until an operator replays or drops some
	ErrBusy        = errors.New("too many publishes are in flight")
	ErrUnavailable = errors.New("the stream cannot be reached")                          // outcome unknown
	ErrDiskFull    = errors.New("the disk of the stream is full")                        // besides ErrUnavailable
	ErrHeld        = errors.New("the records of the source are held back")               // while it is moved to other lanes
	ErrKeyReused   = errors.New("the idempotency key was used with another body")        // within the deduplication window
	ErrTooLarge    = errors.New("a message exceeds the stream's limit")                  // a single record
	ErrUnreachable = errors.New("the warehouse cannot be reached from here")             // another process may reach it
	ErrNotOwner    = errors.New("the lane has another owner")                            // a compare-and-swap failed
	ErrGap         = errors.New("messages are missing from the lane before their block") // purged or lost before they were stored
)

// RetryError adds to an error when to retry.
type RetryError struct {
	Err   error
	After time.Duration
}

func (e *RetryError) Error() string { return e.Err.Error() }
func (e *RetryError) Unwrap() error { return e.Err }

// Class is how a failed insert is handled.
type Class int

const (
	ClassUnknown Class = iota // retry a few times, then halt
	ClassRetry                // retry without limit: same block, same token
	ClassHalt                 // schema, rights, configuration: alarm, and probe until fixed
	ClassPoison               // bad data: find the record and dead-letter it
)

// StoreError is a failed insert with its class.
type StoreError struct {
	Class Class
	Code  int  // of the warehouse: the insert has ended; 0: no answer
	Large bool // out of memory: fewer rows may pass
	Slow  bool // out of time: fewer rows or more time may pass
	Err   error

	Unreached bool // no connection to the warehouse
	InView    bool // a materialized view failed; its table has the rows
}

func (e *StoreError) Error() string { return e.Err.Error() }
func (e *StoreError) Unwrap() error { return e.Err }
