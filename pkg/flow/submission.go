package flow

import (
	"slices"
	"time"
)

// Scope is one right a token may carry.
type Scope string

// The scopes there are. None includes another: a token that may do everything
// names all of them.
const (
	ScopeRecordsWrite Scope = "records:write" // post workflow records
	ScopeUserWrite    Scope = "user:write"    // patch the current user
	ScopeFieldsWrite  Scope = "fields:write"  // put and delete dataset fields
	ScopeRead         Scope = "read"          // read the current user and dataset fields
	ScopeAdmin        Scope = "admin"         // store members that bear authority: privileges, grant, license, type, status
)

// Scopes lists every scope, in the order they are documented.
func Scopes() []Scope {
	return []Scope{ScopeRecordsWrite, ScopeUserWrite, ScopeFieldsWrite, ScopeRead, ScopeAdmin}
}

// Caller is who a request comes from, as its token says.
type Caller struct {
	Subject string      // the current user, and the owner of its idempotency keys; never empty
	Source  string      // the engine whose records it posts; never empty
	Scopes  []Scope     // not modified after it is handed out, nor are the lists below
	Tables  []string    // dataset tables it may touch; nil for all, empty for none
	Tenants []string    // tenants whose records it may post; nil for all, empty for none
	Exclude []Exclusion // records that are accepted and not kept
	Rate    float64     // requests per second the token may make; 0 leaves it to the api
}

// May tells whether the token carries the scope.
func (c Caller) May(s Scope) bool { return slices.Contains(c.Scopes, s) }

// MayTouch tells whether the token may touch fields of a dataset table.
func (c Caller) MayTouch(table string) bool {
	return c.Tables == nil || slices.Contains(c.Tables, table)
}

// Submission is one accepted request on its way into the stream.
type Submission struct {
	ID          string    // identity within the deduplication window, together with Source and Subject; ASCII, no spaces
	Hash        string    // hex of the 128-bit hash of the body: tells a repeat from a misused key
	Subject     string    // subject of the token that posted it
	Source      string    // the engine its records are of, as the token says
	Received    time.Time // when the api received it
	TraceParent string    // W3C trace context as sent, or empty
	Identified  bool      // every record has an identity of its own, so that a repeat needs no memory of the request
	Unique      bool      // its ID is never sent again
	Records     Cutter    // its records
}

// Cutter is the records of a request, which are cut when it is known how many lanes
// its source has. The api's is a *record.Request, Chunks is one that is cut already.
type Cutter interface {
	// Cut returns at least one chunk: the records in order, those of one lane
	// together, the lanes in order. They are good until the next Cut, and are not
	// used after Publish returns.
	Cut(lanes int) ([]Chunk, error)
}

// Chunk is a part of a request: a JSON array of records as they were sent, cut
// between records so that it stays below a size.
type Chunk struct {
	Body     []byte // JSON array, encoded as Encoding says; not modified
	Encoding string // EncodingS2, or empty for plain JSON
	Records  int    // how many records the array holds
	Lane     int    // index in the list of its source's lanes
}

// Chunks is a Cutter of what is cut already.
type Chunks []Chunk

// Cut returns them as they are.
func (c Chunks) Cut(int) ([]Chunk, error) { return c, nil }

// EncodingS2 marks a body compressed as one S2 block.
const EncodingS2 = "s2"

// Receipt is the stream's answer once a Submission is durable.
type Receipt struct {
	Replayed bool    // the same ID and body were sent before: nothing of it is stored twice
	Places   []Place // where its chunks are; not modified
}

// Place is a message of a lane.
type Place struct {
	Lane   int
	Stream string // StreamID of the lane, which a lane that is deleted and created again does not keep
	Seq    uint64
	ID     string // Nats-Msg-Id under which it was sent, which tells it from another message of this number; empty when that is not known
}

const (
	// DefaultChunkBytes is the size chunks are made for.
	DefaultChunkBytes = 512 << 10

	// MaxChunkBytes is the largest chunk the stream takes: its limit of 16 MiB
	// for a message, less room for the headers.
	MaxChunkBytes = 16<<20 - 64<<10
)
