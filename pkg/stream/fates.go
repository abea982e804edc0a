package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const headerFate = "Sluice-Fate" // of a note that a dead letter is settled

// Fates of what was set aside.
const (
	FateDead     = "dead"     // it is among the dead letters
	FateReplayed = "replayed" // it was sent again, and is a message of its own since
	FateDropped  = "dropped"  // somebody has given it up
)

// Fate says what became of a record, or a whole message, that was set aside.
type Fate struct {
	Lane        int
	Incarnation uint64 // life of the lane
	Seq         uint64
	Index       int // -1 for the whole message
	Fate        string
}

// Fates gives the fate of everything that was set aside, of any life of a lane,
// for as long as the lane holds the message; the same origin may come twice, and
// then is settled. What is set aside or settled while it runs may
// come or not, but nothing is missed on its way from letter to settled: the note
// that it is settled is there before the letter goes, and is looked for after.
func (l *DeadLetters) Fates(ctx context.Context) iter.Seq2[Fate, error] {
	return func(yield func(Fate, error) bool) {
		for _, from := range []struct{ stream, prefix string }{{DeadStream, DeadPrefix}, {NoteStream, SettledPrefix}} {
			for msg, err := range l.stream.scan(ctx, from.stream, scanFrom{subject: from.prefix + ">", heads: true}) {
				if err != nil {
					yield(Fate{}, fmt.Errorf("read what was set aside: %w", err))
					return
				}
				fate := cmp.Or(first(msg.Headers(), headerFate), FateDead)
				lane, incarnation, seq, index, err := parseOrigin(strings.TrimPrefix(msg.Subject(), from.prefix))
				if !yield(Fate{lane, incarnation, seq, index, fate}, err) {
					return
				}
			}
		}
	}
}

// settle notes what became of a letter. The first note stands.
func (l *DeadLetters) settle(ctx context.Context, d DeadLetter, fate string) error {
	_, err := l.stream.js.PublishMsg(ctx, &nats.Msg{Subject: SettledPrefix + d.origin, Header: nats.Header{headerFate: {fate}}})
	if err != nil && !isOneTooMany(err) {
		_, _, answer := judge(err)
		return fmt.Errorf("note that it is %s: %w", fate, answer)
	}
	return nil
}

// settled is the fate a letter has by its note, empty when there is none.
func (l *DeadLetters) settled(ctx context.Context, d DeadLetter) (string, error) {
	note, err := l.stream.notes.GetLastMsgForSubject(ctx, SettledPrefix+d.origin)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return "", nil
	}
	if err != nil {
		return "", unavailable(err, 2*time.Second)
	}
	return first(note.Header, headerFate), nil
}

// forgetSettled removes the notes about messages of a lane before keep, and
// about those of other lives of it than these.
func (l *DeadLetters) forgetSettled(ctx context.Context, lane *Lane, keep uint64, lives ...uint64) error {
	info, err := l.stream.notes.Info(ctx, jetstream.WithSubjectFilter(SettledPrefix+strconv.Itoa(lane.Number)+".>"))
	if err != nil {
		return unavailable(fmt.Errorf("look up settled dead letters: %w", err), 2*time.Second)
	}
	for subject := range info.State.Subjects {
		_, life, seq, _, err := parseOrigin(strings.TrimPrefix(subject, SettledPrefix))
		if err == nil && slices.Contains(lives, life) && seq >= keep {
			continue
		}
		if err := l.stream.notes.Purge(ctx, jetstream.WithPurgeSubject(subject)); err != nil {
			return unavailable(fmt.Errorf("forget a settled dead letter: %w", err), 2*time.Second)
		}
	}
	return nil
}
