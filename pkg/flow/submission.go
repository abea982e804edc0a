package flow

import (
	"slices"
	"time"
)

// Scope is a permission of a token.
type Scope string

// Scopes do not include each other: a token with every permission lists all.
const (
	ScopeRecordsWrite Scope = "records:write" // post workflow records
	ScopeUserWrite    Scope = "user:write"    // patch the current user
	ScopeFieldsWrite  Scope = "fields:write"  // put and delete dataset fields
	ScopeRead         Scope = "read"          // read the current user and dataset fields
	ScopeAdmin        Scope = "admin"         // store members that grant authority: privileges, grant, license, type, status
)

// Scopes lists every scope, in the order they are documented.
func Scopes() []Scope {
	return []Scope{ScopeRecordsWrite, ScopeUserWrite, ScopeFieldsWrite, ScopeRead, ScopeAdmin}
}

// Caller is the identity and permissions of a request's token.
type Caller struct {
	Subject string      // the current user, and the owner of its idempotency keys; never empty
	Source  string      // the engine whose records it posts; never empty
	Scopes  []Scope     // read-only, like the lists below
	Tables  []string    // dataset tables it may change and read; nil for all, empty for none
	Tenants []string    // tenants whose records it may post; nil for all, empty for none
	Exclude []Exclusion // records to accept and not keep
	Rate    float64     // requests per second of the token; 0: the api's default
}

func (c Caller) May(s Scope) bool { return slices.Contains(c.Scopes, s) }

func (c Caller) MayTouch(table string) bool {
	return c.Tables == nil || slices.Contains(c.Tables, table)
}

// Submission is one accepted request on its way into the stream.
type Submission struct {
	ID          string    // identity within the deduplication window, together with Source and Subject; ASCII, no spaces
	Hash        string    // hex of the 128-bit hash of the body: distinguishes a repeat from a misused key
	Subject     string    // subject of the token that posted it
	Source      string    // the engine of its records, from the token
	Received    time.Time // when the api received it
	TraceParent string    // W3C trace context as sent, or empty
	Identified  bool      // every record has a deduplication key: repeats need no request memory
	Unique      bool      // its ID is never sent again
	Records     Cutter    // its records
}

// Cutter cuts the records of a request once the number of its source's lanes is known.
// The api's is a *record.Request; Chunks is already cut.
type Cutter interface {
	// Cut returns at least one chunk: records in order, grouped by lane, lanes in
	// order. They are valid until the next Cut and not used after Publish returns.
	Cut(lanes int) ([]Chunk, error)
}

// Chunk is a part of a request: whole records, up to a maximum size.
type Chunk struct {
	Body     []byte // encoded by Encoding; not modified
	Encoding string // EncodingColumns; EncodingS2 or empty for a JSON array, such as a replayed dead letter
	Records  int    // number of them
	Lane     int    // index in the list of its source's lanes
}

// Chunks is a Cutter that is already cut.
type Chunks []Chunk

func (c Chunks) Cut(int) ([]Chunk, error) { return c, nil }

// EncodingS2 marks a JSON array compressed as one S2 block.
const EncodingS2 = "s2"

// EncodingColumns marks the columns of records, compressed as one S2 block (package record).
const EncodingColumns = "columns"

// Receipt is the stream's acknowledgement of a durable Submission.
type Receipt struct {
	Replayed bool    // the same ID and body were sent before; nothing is stored twice
	Places   []Place // where its chunks are; not modified
}

// Place is a message of a lane.
type Place struct {
	Lane   int
	Stream string // StreamID of the lane; a recreated lane has another
	Seq    uint64
	ID     string // Nats-Msg-Id, which another message of this sequence would not have; empty: unknown
}

const (
	// DefaultChunkBytes is the target size of chunks.
	DefaultChunkBytes = 512 << 10

	// MaxChunkBytes is the largest chunk: the stream's message limit of 16 MiB less
	// the headers.
	MaxChunkBytes = 16<<20 - 64<<10
)
