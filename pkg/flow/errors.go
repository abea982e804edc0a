package flow

import (
	"errors"
	"time"
)

// Why a request has no Caller.
var (
	ErrTokenMissing    = errors.New("no access token was sent")
	ErrTokenInvalid    = errors.New("the access token is not valid")                    // unknown, malformed, expired, for another audience
	ErrTokenUnverified = errors.New("the access token cannot be checked at the moment") // its keys cannot be had
)

// What the stream may answer instead of a Receipt. Nothing of the submission
// is stored, unless the error is ErrUnavailable, where it may be: the same ID
// sent again settles it.
var (
	ErrFull        = errors.New("the stream is full")                                    // the disk budget is used up
	ErrDeadShare   = errors.New("the source has too many dead letters")                  // until an operator replays or drops some
	ErrBusy        = errors.New("the stream takes no more at the moment")                // too much in flight
	ErrUnavailable = errors.New("the stream cannot be reached")                          // outcome unknown
	ErrDiskFull    = errors.New("the disk of the stream is full")                        // besides ErrUnavailable
	ErrHeld        = errors.New("the records of the source are held back")               // while it is moved to other lanes
	ErrKeyReused   = errors.New("the idempotency key was used with another body")        // within the duplicate window
	ErrTooLarge    = errors.New("a message is larger than the stream takes")             // one record beyond the limit
	ErrUnreachable = errors.New("the warehouse cannot be reached from here")             // another process may reach it
	ErrNotOwner    = errors.New("the lane has another owner")                            // a compare-and-swap was lost
	ErrGap         = errors.New("messages are missing from the lane before their block") // purged or lost before they were stored
)

// RetryError adds to an error when it is worth trying again.
type RetryError struct {
	Err   error
	After time.Duration
}

func (e *RetryError) Error() string { return e.Err.Error() }
func (e *RetryError) Unwrap() error { return e.Err }

// Class says what to do about a failed store.
type Class int

const (
	ClassUnknown Class = iota // retry a few times, then halt
	ClassRetry                // the same block with the same token, for ever
	ClassHalt                 // schema, rights, configuration: alarm, and probe until it is mended
	ClassPoison               // the data: find the one record and set it aside
)

// StoreError is a failed store with its class.
type StoreError struct {
	Class Class
	Code  int  // of the warehouse, which is done with it then; 0 when it gave none
	Large bool // it ran out of memory: fewer rows at once may pass
	Slow  bool // it ran out of time: so may fewer rows, or more time
	Err   error

	Unreached bool // no connection to the warehouse could be made
}

func (e *StoreError) Error() string { return e.Err.Error() }
func (e *StoreError) Unwrap() error { return e.Err }
