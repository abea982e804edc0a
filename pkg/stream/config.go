package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/broker"
	"sluice/pkg/flow"
	"sluice/pkg/option"
)

// Config configures the streams. The zero value is the default of one machine. Existing
// streams keep their size and replicas unless set here.
type Config struct {
	MaxBytes        int64         `name:"stream-max-bytes" default:"0" help:"Disk budget of a lane in bytes; 0: 4 GiB for a new lane, unchanged for an existing one."`
	DeadMaxBytes    int64         `default:"0" help:"Disk budget of dead letters in bytes; 0: 256 MiB on creation, unchanged afterwards. A source may use as much as is free; once seven eighths are used, a lane that has to dead-letter a record halts."`
	StateMaxBytes   int64         `default:"0" help:"Disk budget of users and dataset fields in bytes; 0: 256 MiB on creation, unchanged afterwards. Changes get 429 once nine tenths are used."`
	Replicas        int           `name:"stream-replicas" default:"0" help:"Copies of every stream: 1, 3 or 5; 0: 1 for a new stream, unchanged for an existing one."` // an added stream copies lane 0
	DuplicateWindow time.Duration `default:"0" help:"Duplicate window of lanes; 0: 2m for the first lane, unchanged afterwards."`
	RepeatWindow    time.Duration `default:"10m" help:"Deduplication window of requests whose records have no deduplication key, in stream time; equal for all programs."`
	Monitors        []string      `name:"nats-monitors" help:"Monitoring URLs of the NATS servers, comma-separated: start only if they sync every message to disk, and show their health and stores as metrics."`
	AllowLazySync   bool          `help:"Start even if a server of --nats-monitors does not sync every message: a power failure can lose acknowledged records."`

	Poll  time.Duration `kong:"-" default:"3s"`  // interval of look-ups of lanes and sources
	Fresh time.Duration `kong:"-" default:"15s"` // how long a look-up may be used; equal for all programs that publish or spread

	Now    func() time.Time `kong:"-"` // default time.Now
	Random func() uint64    `kong:"-"` // default: the runtime's

	Trouble func() error `kong:"-"` // why the embedded server cannot write; default: by Monitors

}

const (
	defaultMaxBytes     = 4 << 30
	defaultDeadMaxBytes = 256 << 20
	defaultStateBytes   = 256 << 20
	defaultWindow       = 2 * time.Minute

	// maxMessage bounds one message with its headers: the server's max_payload must
	// allow it. Messages are far smaller, but a record is never cut.
	maxMessage = 16 << 20

	// minAhead is the prefetch that the largest message needs, subject included.
	minAhead = broker.MaxMessage

	// LeaseTTL is the TTL of leases.
	LeaseTTL = 10 * time.Second
)

func (c Config) withDefaults() Config {
	option.Defaults(&c)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Random == nil {
		c.Random = rand.Uint64
	}
	return c
}

// Names in NATS, which users see and grant permissions on.
const (
	// LanePrefix and a number name a lane's stream: FLOW_0, FLOW_1, …
	LanePrefix = "FLOW_"

	// DeadStream holds dead letters until an operator replays or drops them.
	DeadStream = "FLOW_DEAD"

	// NoteStream holds the notes about dead letters, so that they have space when
	// FLOW_DEAD is full.
	NoteStream = "FLOW_NOTES"

	// ChangePrefix and the key of a target are the subject of its changes, on lane 0.
	ChangePrefix = "flow.0.change."

	// DeadPrefix and <lane>.<incarnation>.<sequence>.<index> are the subject of a dead
	// letter, which makes it unique.
	DeadPrefix = "flow.dead."

	// ReplayPrefix and the same are the subject of a note that a replay has begun.
	ReplayPrefix = "flow.replay."

	// SettledPrefix and the same are the subject of a note of a dead letter's outcome,
	// kept as long as the lane keeps its message.
	SettledPrefix = "flow.settled."

	// LaneBucket holds the lane state of each lane, lane.<n>; the checkpoint of changes,
	// changes.0; orders to forget instances, forget.<id>; and the expiry line, expired.
	LaneBucket = "flow_lanes"

	// SourceBucket holds the lane list of each source, s<base64url of its name>.
	SourceBucket = "flow_sources"

	// LeaseBucket holds the owner of each lane, lane.<n>, and the running ingesters,
	// member.<instance>. Its entries expire unless renewed.
	LeaseBucket = "flow_leases"

	// StateBucket holds users and dataset fields.
	StateBucket = "flow_state"
)

// CreatedKey is metadata of a copied stream: the creation time of the original, unix ns.
const CreatedKey = "sluice-created"

// FormatKey is metadata of a lane: the format of this deployment, flow.Format.
const FormatKey = "sluice-format"

// Headers of a message in a lane. An entry of requests has the first two and a table; a
// change, a move marker, and a dead letter have the rest.
const (
	headerID       = "Nats-Msg-Id"
	headerEntry    = "Sluice-Entry"    // the table of an entry, base64
	headerEncoding = "Sluice-Encoding" // compression of the body: s2, or absent
	headerRecords  = "Sluice-Records"  // number of records in the body
	headerReceived = "Sluice-Received" // when the api received it, unix milliseconds
	headerSubject  = "Sluice-Subject"  // subject of the token that posted it
	headerSource   = "Sluice-Source"   // the engine of its records, from that token
	headerRevision = "Sluice-Revision" // of the source's lane list, in a move marker
	headerTrace    = "traceparent"     // W3C trace context

	headerExpectedSubjectSeq = "Nats-Expected-Last-Subject-Sequence"

	headerKVOperation = "KV-Operation" // of a deleted entry of a bucket
)

// LaneName is the stream of a lane.
func LaneName(lane int) string { return LanePrefix + strconv.Itoa(lane) }

// RecordTopic is the NATS subject of a lane's records.
func RecordTopic(lane int) string { return fmt.Sprintf("flow.%d.record", lane) }

// laneNumber parses the lane number of a stream's name.
func laneNumber(name string) (int, bool) {
	text, ok := strings.CutPrefix(name, LanePrefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 16)
	return int(n), err == nil && text == strconv.FormatUint(n, 10)
}

// MoveTopic is the NATS subject of move markers: after one the lane has no records of its
// source that were routed by an older list.
func MoveTopic(lane int) string { return fmt.Sprintf("flow.%d.move", lane) }

// TickTopic is the NATS subject of ticks: empty messages that advance the stream time of an
// idle lane.
func TickTopic(lane int) string { return fmt.Sprintf("flow.%d.tick", lane) }

func laneSubjects(lane int) []string {
	subjects := []string{RecordTopic(lane), MoveTopic(lane), TickTopic(lane)}
	if lane == 0 {
		subjects = append(subjects, ChangePrefix+">")
	}
	return subjects
}

// Permissions are the subjects a NATS user may publish and subscribe to.
type Permissions struct{ Publish, Subscribe []string }

// ask is the read permissions of every program. A wildcard matches a whole token, so streams
// cannot be selected by prefix.
var ask = []string{
	"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*",
	"$JS.API.DIRECT.GET.>", "$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.INFO.>", "$JS.API.CONSUMER.MSG.NEXT.>",
	"$JS.ACK.>", "$JS.FC.>",
}

// APIPermissions are those of the api: it adds records and changes, and dead-letters invalid
// records. It cannot create, change, purge, or delete a stream, nor move a checkpoint.
func APIPermissions() Permissions {
	return Permissions{
		Publish:   append([]string{"flow.*.record", ChangePrefix + ">", "$KV." + SourceBucket + ".>", DeadPrefix + strconv.Itoa(NoLane) + ".>"}, ask...),
		Subscribe: []string{"_INBOX_api.>"},
	}
}

// IngesterPermissions are those of the ingester: it moves checkpoints, holds leases, writes the
// state store and dead letters, purges, and sends ticks. It cannot add records or changes, nor
// create or delete a stream.
func IngesterPermissions() Permissions {
	return Permissions{
		Publish: append([]string{
			"$KV." + LaneBucket + ".>", "$KV." + LeaseBucket + ".>", "$KV." + StateBucket + ".>",
			DeadPrefix + ">", SettledPrefix + ">", "flow.*.tick", "$JS.API.STREAM.PURGE.*",
		}, ask...),
		Subscribe: []string{"_INBOX_ingester.>"},
	}
}

// ConsolePermissions are those of the console: it reads, and replays and drops dead letters,
// which adds records and changes. It cannot move a checkpoint, nor create, purge, or delete a
// stream.
func ConsolePermissions() Permissions {
	const remove = "$JS.API.STREAM.MSG.DELETE."
	return Permissions{
		Publish: append([]string{
			"flow.*.record", ChangePrefix + ">", "$KV." + SourceBucket + ".>", ReplayPrefix + ">", SettledPrefix + ">",
			remove + DeadStream, remove + NoteStream,
		}, ask...),
		Subscribe: []string{"_INBOX_console.>"},
	}
}

// OperatorPermissions are those of the operator's commands, which create the streams: all.
func OperatorPermissions() Permissions {
	return Permissions{Publish: []string{">"}, Subscribe: []string{">"}}
}

// laneConfig is the configuration of a lane. Only the Purger removes messages; they never
// expire by age or for space.
func (s *Stream) laneConfig(lane int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        LaneName(lane),
		Description: "Sluice: accepted records, kept until they are stored and for the history after",
		Subjects:    laneSubjects(lane),
		Storage:     jetstream.FileStorage,
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardNew,
		MaxBytes:    s.cfg.MaxBytes,
		MaxMsgSize:  maxMessage,
		Duplicates:  s.cfg.DuplicateWindow,
		Replicas:    s.cfg.Replicas,
		AllowDirect: false, // read from the leader: a follower may lag
		Metadata:    map[string]string{FormatKey: strconv.Itoa(flow.Format)},
	}
}

// deadConfig: one message per subject, never replaced, which makes dead-lettering idempotent
// beyond the duplicate window.
func (s *Stream) deadConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:                 DeadStream,
		Description:          "Sluice: dead letters, with their reasons",
		Subjects:             []string{DeadPrefix + ">"},
		Storage:              jetstream.FileStorage,
		Retention:            jetstream.LimitsPolicy,
		Discard:              jetstream.DiscardNew,
		DiscardNewPerSubject: true,
		MaxMsgsPerSubject:    1,
		MaxBytes:             s.cfg.DeadMaxBytes,
		Replicas:             s.cfg.Replicas,
	}
}

// noteConfig: notes are small and removed with their message, so they need no size limit.
func (s *Stream) noteConfig() jetstream.StreamConfig {
	cfg := s.deadConfig()
	cfg.Name, cfg.Description, cfg.MaxBytes = NoteStream, "Sluice: outcomes of dead letters", 0
	cfg.Subjects = []string{ReplayPrefix + ">", SettledPrefix + ">"}
	return cfg
}

// bucketConfig is the stream of a KV bucket as in nats.go, but read from the leader.
func (s *Stream) bucketConfig(bucket string, ttl time.Duration) jetstream.StreamConfig {
	maxBytes := int64(0)
	if bucket == StateBucket {
		maxBytes = s.cfg.StateMaxBytes
	}
	return jetstream.StreamConfig{
		Name:              "KV_" + bucket,
		Subjects:          []string{"$KV." + bucket + ".>"},
		Storage:           jetstream.FileStorage,
		Discard:           jetstream.DiscardNew,
		MaxMsgsPerSubject: 1,
		MaxAge:            ttl,
		MaxBytes:          maxBytes,
		Replicas:          s.cfg.Replicas,
		AllowRollup:       true,
		DenyDelete:        true,
		AllowDirect:       false,
	}
}

// ensure creates a missing stream and fixes settings that are safe to change. Other
// differences are an error for the operator.
func (s *Stream) ensure(ctx context.Context, want jetstream.StreamConfig) error {
	info, err := s.js.Info(ctx, want.Name, "")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		refused := s.create(ctx, want)
		if refused == nil {
			return nil
		}
		// Programs start concurrently: NATS may refuse the second creation for the
		// space or the subjects of the stream that the first has just created.
		if info, err = s.js.Info(ctx, want.Name, ""); errors.Is(err, jetstream.ErrStreamNotFound) {
			return refused
		}
	}
	if err != nil {
		return fmt.Errorf("look up stream %s: %w", want.Name, err)
	}
	have := info.Config
	if err := refuse(have, want); err != nil {
		return err
	}
	next, fixed := fix(have, want)
	if len(fixed) == 0 {
		return nil
	}
	s.log.Warn("fixing the configuration of a stream", "stream", want.Name, "settings", fixed)
	if _, err := s.js.Update(ctx, next); err != nil {
		return fmt.Errorf("fix %s of stream %s: %w", strings.Join(fixed, ", "), want.Name, err)
	}
	return nil
}

func (s *Stream) create(ctx context.Context, want jetstream.StreamConfig) error {
	if _, isLane := laneNumber(want.Name); isLane {
		want.MaxBytes = cmp.Or(want.MaxBytes, defaultMaxBytes)
		want.Duplicates = cmp.Or(want.Duplicates, defaultWindow)
	}
	switch want.Name {
	case DeadStream:
		want.MaxBytes = cmp.Or(want.MaxBytes, defaultDeadMaxBytes)
	case "KV_" + StateBucket:
		want.MaxBytes = cmp.Or(want.MaxBytes, defaultStateBytes)
	}
	want.Replicas = cmp.Or(want.Replicas, s.copies(ctx))
	_, err := s.js.Create(ctx, want)
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == codeStorageResources {
		flag := "--stream-max-bytes"
		switch want.Name {
		case DeadStream:
			flag = "--dead-max-bytes"
		case "KV_" + StateBucket:
			flag = "--state-max-bytes"
		}
		return fmt.Errorf("create stream %s of %d MiB: the NATS server has not enough disk for the limits of all streams: free space or lower this limit, such as %s %d: %w", want.Name, want.MaxBytes>>20, flag, want.MaxBytes/16, err)
	}
	if err != nil {
		return fmt.Errorf("create stream %s: %w", want.Name, err)
	}
	return nil
}

// copies is the replicas of lane 0, and of streams added later: with fewer, the loss of one
// server would stop them.
func (s *Stream) copies(ctx context.Context) int {
	if lane, ok := s.view.Load().lane(0); ok {
		return lane.Replicas
	}
	if info, err := s.js.Info(ctx, LaneName(0), ""); err == nil { // just created
		return info.Config.Replicas
	}
	return 1
}

// refuse reports settings that would lose or hide data and that Sluice does not change.
func refuse(have, want jetstream.StreamConfig) error {
	if is, reads := have.Metadata[FormatKey], want.Metadata[FormatKey]; is != reads {
		return fmt.Errorf("stream %s has format %s, but this version of Sluice reads only format %s: use the version that created it, or an empty NATS", want.Name, cmp.Or(is, "0, from before formats had numbers"), reads)
	}
	var wrong []string
	if have.Storage != want.Storage {
		wrong = append(wrong, "storage is not file")
	}
	if have.Retention != want.Retention {
		wrong = append(wrong, "retention is not limits")
	}
	if have.MaxAge != want.MaxAge {
		wrong = append(wrong, fmt.Sprintf("max age is %v instead of %v", have.MaxAge, want.MaxAge))
	}
	if have.PersistMode != want.PersistMode {
		wrong = append(wrong, "it acknowledges before writing (persist mode async)")
	}
	if have.Sealed || have.NoAck {
		wrong = append(wrong, "it is sealed or does not acknowledge")
	}
	if have.Mirror != nil || len(have.Sources) > 0 || have.SubjectTransform != nil {
		wrong = append(wrong, "it mirrors, sources or renames")
	}
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("stream %s cannot be used: %s", want.Name, strings.Join(wrong, "; "))
}

// fix returns have with the settings of want that are safe to change, and their names. Sizes
// and replicas change only if configured.
func fix(have, want jetstream.StreamConfig) (jetstream.StreamConfig, []string) {
	var fixed []string
	set := func(name string, differs bool, apply func()) {
		if differs {
			apply()
			fixed = append(fixed, name)
		}
	}
	for _, subject := range want.Subjects {
		set("subject "+subject, !slices.Contains(have.Subjects, subject), func() { have.Subjects = append(have.Subjects, subject) })
	}
	set("discard", have.Discard != want.Discard, func() { have.Discard = want.Discard })
	set("discard_new_per_subject", have.DiscardNewPerSubject != want.DiscardNewPerSubject, func() { have.DiscardNewPerSubject = want.DiscardNewPerSubject })
	set("max_msgs_per_subject", max(have.MaxMsgsPerSubject, 0) != want.MaxMsgsPerSubject, func() { have.MaxMsgsPerSubject = want.MaxMsgsPerSubject })
	set("allow_direct", have.AllowDirect != want.AllowDirect, func() { have.AllowDirect = want.AllowDirect })
	set("duplicate_window", want.Duplicates > 0 && have.Duplicates != want.Duplicates, func() { have.Duplicates = want.Duplicates })
	set("max_msg_size", want.MaxMsgSize > 0 && have.MaxMsgSize != want.MaxMsgSize, func() { have.MaxMsgSize = want.MaxMsgSize })
	set("max_bytes", want.MaxBytes > 0 && have.MaxBytes != want.MaxBytes, func() { have.MaxBytes = want.MaxBytes })
	set("num_replicas", want.Replicas > 0 && have.Replicas != want.Replicas, func() { have.Replicas = want.Replicas })
	return have, fixed
}
