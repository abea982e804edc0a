package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/flow"
)

// expiryKey is the key of the expiry line.
const expiryKey = "expired"

// ExpiryLine is the latest stored day, such as 2025-11-21, that an earlier retention let
// expire; empty if none. The current retention is a property of the tables.
func (s *Stream) ExpiryLine(ctx context.Context) (string, error) {
	line, _, err := s.expiryLine(ctx)
	return line, err
}

func (s *Stream) expiryLine(ctx context.Context) (line string, revision uint64, err error) {
	entry, err := s.checkpoints.Get(ctx, expiryKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, unavailable(fmt.Errorf("read the expiry line: %w", err), 2*time.Second)
	}
	line = string(entry.Value())
	if _, err := time.Parse(time.DateOnly, line); err != nil {
		return "", 0, fmt.Errorf("the expiry line %q is not a day: write the last stored day that may have expired, such as 2025-11-21, to the key %s of bucket %s", line, expiryKey, LaneBucket)
	}
	return line, entry.Revision(), nil
}

// MoveExpiryLine advances the expiry line to a day; it never moves back.
func (s *Stream) MoveExpiryLine(ctx context.Context, day string) error {
	for try := 1; ; try++ {
		line, revision, err := s.expiryLine(ctx)
		if err != nil || day <= line {
			return err
		}
		if revision == 0 {
			_, err = s.checkpoints.Create(ctx, expiryKey, []byte(day))
		} else {
			_, err = s.checkpoints.Update(ctx, expiryKey, []byte(day), revision)
		}
		moved := errors.Is(err, jetstream.ErrKeyExists) || isCode(err, codeWrongLastSequence, codeWrongLastSequenceR3)
		switch {
		case err == nil:
			return nil
		case !moved:
			return unavailable(fmt.Errorf("move the expiry line to %s: %w", day, err), 2*time.Second)
		case try == holdTries:
			return fmt.Errorf("move the expiry line to %s: %w", day, flow.ErrNotOwner)
		}
	}
}
