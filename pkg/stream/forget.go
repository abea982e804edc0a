package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

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

// ForgetState removes an entry of the state store without a trace, if it is of
// this revision or older: one that was written meanwhile stays.
func (s *Stream) ForgetState(ctx context.Context, key string, revision uint64) error {
	bucket, err := s.js.Stream(ctx, "KV_"+StateBucket)
	if err == nil {
		err = bucket.Purge(ctx, jetstream.WithPurgeSubject("$KV."+StateBucket+"."+key), jetstream.WithPurgeSequence(revision+1))
	}
	if err != nil {
		return unavailable(fmt.Errorf("remove an entry of the state store: %w", err), 2*time.Second)
	}
	return nil
}
