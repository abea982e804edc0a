package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

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
		DenyDelete:  true,
		AllowDirect: false, // reads ask the leader: a follower may not have what it was just told of
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
	return jetstream.StreamConfig{
		Name:              "KV_" + bucket,
		Subjects:          []string{"$KV." + bucket + ".>"},
		Storage:           jetstream.FileStorage,
		Discard:           jetstream.DiscardNew,
		MaxMsgsPerSubject: 1,
		MaxAge:            ttl,
		Replicas:          s.cfg.Replicas,
		AllowRollup:       true,
		DenyDelete:        true,
		AllowDirect:       false,
	}
}

// ensure makes the stream when it is missing and mends what of it can be
// mended. What can not, or is somebody's decision, is an error that says so.
func (s *Stream) ensure(ctx context.Context, want jetstream.StreamConfig) (jetstream.Stream, error) {
	handle, err := s.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return s.create(ctx, want)
	}
	if err != nil {
		return nil, fmt.Errorf("look up stream %s: %w", want.Name, err)
	}
	have := handle.CachedInfo().Config
	if err := refuse(have, want); err != nil {
		return nil, err
	}
	next, mended := mend(have, want)
	if len(mended) == 0 {
		return handle, nil
	}
	s.log.Warn("mending the configuration of a stream", "stream", want.Name, "settings", mended)
	if handle, err = s.js.UpdateStream(ctx, next); err != nil {
		return nil, fmt.Errorf("mend %s of stream %s: %w", strings.Join(mended, ", "), want.Name, err)
	}
	return handle, nil
}

func (s *Stream) create(ctx context.Context, want jetstream.StreamConfig) (jetstream.Stream, error) {
	if _, isLane := laneNumber(want.Name); isLane {
		want.MaxBytes = cmp.Or(want.MaxBytes, defaultMaxBytes)
		want.Duplicates = cmp.Or(want.Duplicates, defaultWindow)
	}
	if want.Name == DeadStream {
		want.MaxBytes = cmp.Or(want.MaxBytes, defaultDeadMaxBytes)
	}
	want.Replicas = max(want.Replicas, 1)
	// Two programs may start at once: the second finds the same stream made.
	handle, err := s.js.CreateStream(ctx, want)
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == codeStorageResources {
		return nil, fmt.Errorf("create stream %s of %d MiB: the NATS server has less room for JetStream: make room, or allow the stream fewer bytes: %w", want.Name, want.MaxBytes>>20, err)
	}
	if err != nil {
		return nil, fmt.Errorf("create stream %s: %w", want.Name, err)
	}
	return handle, nil
}

// refuse names the settings that would lose or hide data and that are not
// ours to change.
func refuse(have, want jetstream.StreamConfig) error {
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
	return fmt.Errorf("stream %s can not be used: %s", want.Name, strings.Join(wrong, "; "))
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
	if want.Name == DeadStream { // it had the notes too
		others := slices.DeleteFunc(slices.Clone(have.Subjects), func(s string) bool { return slices.Contains(want.Subjects, s) })
		set("subjects", len(others) > 0, func() { have.Subjects = want.Subjects })
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

// boundState gives the state store a size: the one asked for, or one when it has
// none. One that was made before there was a limit has room for as much again.
func (s *Stream) boundState(ctx context.Context, want *jetstream.StreamConfig) error {
	want.MaxBytes = s.cfg.StateMaxBytes
	if want.MaxBytes > 0 {
		return nil
	}
	handle, err := s.js.Stream(ctx, want.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		want.MaxBytes = defaultStateBytes
	case err != nil:
		return fmt.Errorf("look up stream %s: %w", want.Name, err)
	case handle.CachedInfo().Config.MaxBytes <= 0:
		want.MaxBytes = max(defaultStateBytes, 2*int64(handle.CachedInfo().State.Bytes))
	}
	return nil
}
