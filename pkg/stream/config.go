package stream

import "time"

// Config says how the streams are kept. The zero value is one machine with
// the defaults. What exists already keeps its size and its replicas unless
// they are set here.
type Config struct {
	MaxBytes        int64         // bytes a lane may hold before it refuses more; default 4 GiB for a new lane, existing ones as they are
	DeadMaxBytes    int64         // bytes of dead letters; default 256 MiB, as above
	StateMaxBytes   int64         // bytes of users and dataset fields; default 256 MiB for a new bucket, or twice what is there in one without a limit
	Replicas        int           // copies of every stream, 1, 3 or 5; default 1, as above
	DuplicateWindow time.Duration // how long a lane knows the ids of its messages; default 2 min for a new lane, as above
	RepeatWindow    time.Duration // how long a repeated request is known, in stream time (Clock); default 10 min
	Poll            time.Duration // how often lanes and sources are looked up; default 3 s
	Fresh           time.Duration // how long what was seen of them may be acted on, the same for all who publish or spread; default 15 s
	Monitors        []string      // monitoring URLs of the NATS servers; those given are checked for sync_interval always
	AllowLazySync   bool          // go on although a server of Monitors does not sync always
}

const (
	defaultMaxBytes     = 4 << 30
	defaultDeadMaxBytes = 256 << 20
	defaultStateBytes   = 256 << 20
	defaultWindow       = 2 * time.Minute

	// maxMessage bounds one message, headers included: the server's
	// max_payload must allow it. Messages are far smaller, but a record is
	// never cut.
	maxMessage = 16 << 20

	// leastAhead is what a reader has to ask for, so that the largest message
	// comes: its subjects count too.
	leastAhead = maxMessage + 64<<10

	// LeaseTTL is how long a lease outlives its holder.
	LeaseTTL = 10 * time.Second
)

func (c Config) withDefaults() Config {
	if c.RepeatWindow == 0 {
		c.RepeatWindow = 10 * time.Minute
	}
	if c.Poll == 0 {
		c.Poll = 3 * time.Second
	}
	if c.Fresh == 0 {
		c.Fresh = 15 * time.Second
	}
	return c
}
