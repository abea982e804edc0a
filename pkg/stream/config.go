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
	"go.opentelemetry.io/otel/trace"

	"sluice/pkg/broker"
	"sluice/pkg/flow"
	"sluice/pkg/option"
)

// Config says how the streams are kept. The zero value is one machine with
// the defaults. What exists already keeps its size and its replicas unless
// they are set here.
type Config struct {
	MaxBytes        int64         `name:"stream-max-bytes" default:"0" help:"Disk budget of a lane in bytes; 0 is 4 GiB for a new lane and leaves an old one as it is."`
	DeadMaxBytes    int64         `default:"0" help:"Disk budget of dead letters in bytes; 0 is 256 MiB at first and leaves it as it is later. A source may have as much as is free; when seven eighths are used, a lane halts that has to dead-letter a record."`
	StateMaxBytes   int64         `default:"0" help:"Disk budget of users and dataset fields in bytes; 0 is 256 MiB at first and leaves it as it is later. Changes are refused with 429 when nine tenths are used."`
	Replicas        int           `name:"stream-replicas" default:"0" help:"Copies of every stream: 1, 3 or 5; 0 is 1 for a new stream and leaves an old one as it is."` // a stream that is added has as many as lane 0
	DuplicateWindow time.Duration `default:"0" help:"How long a lane recognises a message that is sent to it again; 0 is 2 min for a first lane and leaves it as it is later."`
	RepeatWindow    time.Duration `default:"10m" help:"How long a repeated request is recognised whose records have no identity of their own, in stream time; the same for every program."`
	Monitors        []string      `name:"nats-monitors" help:"Monitoring URLs of the NATS servers, comma-separated: start only if they sync every message to disk, and show their health and stores as metrics."`
	AllowLazySync   bool          `help:"Start although a server of --nats-monitors does not sync every message: acknowledged records can be lost with the power."`

	Poll  time.Duration `kong:"-" default:"3s"`  // how often lanes and sources are looked up
	Fresh time.Duration `kong:"-" default:"15s"` // how long what was seen of them may be acted on, the same for all who publish or spread

	Now    func() time.Time `kong:"-"` // the clock of this process; default time.Now
	Random func() uint64    `kong:"-"` // its random source; default that of the runtime

	Trouble func() error `kong:"-"` // why the server in this process cannot write; default: Monitors are asked

	Tracer trace.Tracer `kong:"-"` // of what is published; nothing is traced when nil
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
	leastAhead = broker.MaxMessage

	// LeaseTTL is how long a lease outlives its holder.
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

// Names in NATS, version 1. They are part of what users see and of the rights
// they give; changing one needs a migration.
const (
	// LanePrefix and a number name a lane's stream: FLOW_0, FLOW_1, …
	LanePrefix = "FLOW_"

	// DeadStream holds what cannot be stored, until an operator decides.
	DeadStream = "FLOW_DEAD"

	// NoteStream holds the notes about dead letters: they must have room when the
	// letters have none.
	NoteStream = "FLOW_NOTES"

	// ChangePrefix and the key of a target are the subject of its changes, all
	// on lane 0.
	ChangePrefix = "flow.0.change."

	// DeadPrefix and <lane>.<incarnation>.<sequence>.<index> are the
	// subject of a dead letter, so that none is ever stored twice.
	DeadPrefix = "flow.dead."

	// ReplayPrefix and the same are the subject of a note that a dead letter is
	// being replayed.
	ReplayPrefix = "flow.replay."

	// SettledPrefix and the same are the subject of a note of what became of a
	// dead letter that is gone, kept as long as the lane keeps its message.
	SettledPrefix = "flow.settled."

	// LaneBucket holds one entry per lane, lane.<n>: what of it is stored;
	// changes.0: which changes of lane 0 are applied; forget.<id>: which process
	// instances every reader of the lanes skips; and expired: the expiry line.
	LaneBucket = "flow_lanes"

	// SourceBucket holds one entry per source, s<base64url of its name>: which
	// lanes its records go to.
	SourceBucket = "flow_sources"

	// LeaseBucket holds which ingester reads which lane, lane.<n>, and which could,
	// member.<instance>. Its entries live as long as they are renewed.
	LeaseBucket = "flow_leases"

	// StateBucket holds users and dataset fields.
	StateBucket = "flow_state"
)

// CreatedKey is the metadata of a stream that is a copy: when the one was made that
// it is a copy of, unix ns.
const CreatedKey = "sluice-created"

// FormatKey is the metadata of a lane: the format of all that this installation keeps,
// flow.Format.
const FormatKey = "sluice-format"

// Headers of a message in a lane. An entry of requests has the first two, and
// says the rest in its table; a change, a move marker and a dead letter have the rest.
const (
	headerID       = "Nats-Msg-Id"
	headerEntry    = "Sluice-Entry"    // the table of an entry, base64
	headerEncoding = "Sluice-Encoding" // how the body is compressed: s2, or absent
	headerRecords  = "Sluice-Records"  // how many records the body holds
	headerReceived = "Sluice-Received" // when the api took it in, unix milliseconds
	headerSubject  = "Sluice-Subject"  // subject of the token that posted it
	headerSource   = "Sluice-Source"   // the engine its records are of, as that token said
	headerRevision = "Sluice-Revision" // of the source's list of lanes, in a move marker
	headerTrace    = "traceparent"     // W3C trace context

	headerExpectedSubjectSeq = "Nats-Expected-Last-Subject-Sequence"

	headerKVOperation = "KV-Operation" // of an entry of a bucket that was deleted
)

// LaneName is the stream of a lane.
func LaneName(lane int) string { return LanePrefix + strconv.Itoa(lane) }

// RecordTopic is the NATS subject of a lane's records.
func RecordTopic(lane int) string { return fmt.Sprintf("flow.%d.record", lane) }

// laneNumber reads the lane out of a stream's name.
func laneNumber(name string) (int, bool) {
	text, ok := strings.CutPrefix(name, LanePrefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 16)
	return int(n), err == nil && text == strconv.FormatUint(n, 10)
}

// MoveTopic is the NATS subject of move markers in a lane: behind one the lane has
// no records of its source that were routed by an older list.
func MoveTopic(lane int) string { return fmt.Sprintf("flow.%d.move", lane) }

// TickTopic is the NATS subject of ticks in a lane: messages of nothing, by which stream
// time goes on in an idle lane.
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

// ask is what every program asks of JetStream: what there is, and to read it. A
// wildcard stands for a whole token, so streams cannot be told by a prefix; what
// is read is what every part sees anyway.
var ask = []string{
	"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*",
	"$JS.API.DIRECT.GET.>", "$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.INFO.>", "$JS.API.CONSUMER.MSG.NEXT.>",
	"$JS.ACK.>", "$JS.FC.>",
}

// APIPermissions are those of the api: it adds records and changes, and sets aside
// what is no record. It can
// neither make, change, purge or delete a stream, nor say what is stored.
func APIPermissions() Permissions {
	return Permissions{
		Publish:   append([]string{"flow.*.record", ChangePrefix + ">", "$KV." + SourceBucket + ".>", DeadPrefix + strconv.Itoa(NoLane) + ".>"}, ask...),
		Subscribe: []string{"_INBOX_api.>"},
	}
}

// IngesterPermissions are those of the ingester: it moves positions, holds
// leases, keeps the state, sets dead letters aside, purges what is stored and ticks. It
// can add neither records nor changes, nor make or delete a stream.
func IngesterPermissions() Permissions {
	return Permissions{
		Publish: append([]string{
			"$KV." + LaneBucket + ".>", "$KV." + LeaseBucket + ".>", "$KV." + StateBucket + ".>",
			DeadPrefix + ">", SettledPrefix + ">", "flow.*.tick", "$JS.API.STREAM.PURGE.*",
		}, ask...),
		Subscribe: []string{"_INBOX_ingester.>"},
	}
}

// ConsolePermissions are those of the console: it reads, and replays and drops
// dead letters for an admin, which are records and changes again then. It can
// move no position, and neither make, purge nor delete a stream.
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

// OperatorPermissions are those of the operator's commands, which also make the
// streams: everything.
func OperatorPermissions() Permissions {
	return Permissions{Publish: []string{">"}, Subscribe: []string{">"}}
}

// laneConfig is how a lane must be. Nothing leaves it by age or to make room:
// only the Purger removes what is stored.
func (s *Stream) laneConfig(lane int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        LaneName(lane),
		Description: "Sluice: records accepted, kept until they are stored and for a while after",
		Subjects:    laneSubjects(lane),
		Storage:     jetstream.FileStorage,
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardNew,
		MaxBytes:    s.cfg.MaxBytes,
		MaxMsgSize:  maxMessage,
		Duplicates:  s.cfg.DuplicateWindow,
		Replicas:    s.cfg.Replicas,
		AllowDirect: false, // reads ask the leader: a follower may not have what it was just told of
		Metadata:    map[string]string{FormatKey: strconv.Itoa(flow.Format)},
	}
}

// deadConfig: one message per subject and no second one, which makes setting
// aside idempotent for ever and not only within the duplicate window.
func (s *Stream) deadConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:                 DeadStream,
		Description:          "Sluice: what could not be stored, with the reason",
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

// noteConfig: a note is small, and goes with the message it is about, so that
// there is no bound that it could run into.
func (s *Stream) noteConfig() jetstream.StreamConfig {
	cfg := s.deadConfig()
	cfg.Name, cfg.Description, cfg.MaxBytes = NoteStream, "Sluice: what became of dead letters", 0
	cfg.Subjects = []string{ReplayPrefix + ">", SettledPrefix + ">"}
	return cfg
}

// bucketConfig is the stream of a KV bucket as nats.go would make it, except
// that reads ask the leader.
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

// ensure makes the stream when it is missing and mends what of it can be
// mended. What cannot be mended, or is for an operator to decide, is an error
// that says so.
func (s *Stream) ensure(ctx context.Context, want jetstream.StreamConfig) error {
	info, err := s.js.Info(ctx, want.Name, "")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		refused := s.create(ctx, want)
		if refused == nil {
			return nil
		}
		// Programs start at once: NATS may refuse the second of them for the
		// room or the subjects of the very stream that the first has just made.
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
	next, mended := mend(have, want)
	if len(mended) == 0 {
		return nil
	}
	s.log.Warn("mending the configuration of a stream", "stream", want.Name, "settings", mended)
	if _, err := s.js.Update(ctx, next); err != nil {
		return fmt.Errorf("mend %s of stream %s: %w", strings.Join(mended, ", "), want.Name, err)
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
		return fmt.Errorf("create stream %s of %d MiB: the disk of the NATS server has less room than all streams may use: free some, or allow this one less, such as %s %d: %w", want.Name, want.MaxBytes>>20, flag, want.MaxBytes/16, err)
	}
	if err != nil {
		return fmt.Errorf("create stream %s: %w", want.Name, err)
	}
	return nil
}

// copies is how many servers hold lane 0: a stream that is added later is held by
// as many, or the loss of one server would stop it.
func (s *Stream) copies(ctx context.Context) int {
	if lane, ok := s.view.Load().lane(0); ok {
		return lane.Replicas
	}
	if info, err := s.js.Info(ctx, LaneName(0), ""); err == nil { // it was just made
		return info.Config.Replicas
	}
	return 1
}

// refuse names the settings that would lose or hide data and that are not
// ours to change.
func refuse(have, want jetstream.StreamConfig) error {
	if is, reads := have.Metadata[FormatKey], want.Metadata[FormatKey]; is != reads {
		return fmt.Errorf("stream %s has format %s, and this version of Sluice reads format %s alone: use the version that made it, or an empty NATS", want.Name, cmp.Or(is, "0, from before formats had numbers"), reads)
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
		wrong = append(wrong, "it acknowledges before it writes (persist mode async)")
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

// mend returns have with the settings of want that are safe to change, and
// their names. Sizes and replicas change only when they were asked for.
func mend(have, want jetstream.StreamConfig) (jetstream.StreamConfig, []string) {
	var mended []string
	set := func(name string, differs bool, apply func()) {
		if differs {
			apply()
			mended = append(mended, name)
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
	return have, mended
}
