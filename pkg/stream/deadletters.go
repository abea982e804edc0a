package stream

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/broker"
	"sluice/pkg/flow"
)

// Headers of a dead letter, in addition to those of its message.
const (
	headerCode    = "Sluice-Code"
	headerReason  = "Sluice-Reason"
	headerIndex   = "Sluice-Index" // of the record in its message; -1 for the whole message
	headerTopic   = "Sluice-Topic" // original NATS subject
	headerMessage = "Sluice-Msg-Id"
	headerPacked  = "Sluice-Packed" // s2 if the letter's body is compressed for storage; its message's encoding is separate
)

// packAbove is the size from which a letter's body is compressed: a single record may exceed
// the message it came in.
const packAbove = 512 << 10

// DeadLetters stores undeliverable records unchanged until an operator replays or drops them.
type DeadLetters struct {
	stream *Stream
	by     string // operator, for notes; empty: unknown
}

// NewDeadLetters returns the DeadLetters of s.
func NewDeadLetters(s *Stream) *DeadLetters { return &DeadLetters{stream: s} }

// As returns DeadLetters whose notes about replays and drops carry a name.
func (l *DeadLetters) As(by string) *DeadLetters { return &DeadLetters{stream: l.stream, by: by} }

// DeadLetter is one record, or one whole message, that was dead-lettered.
type DeadLetter struct {
	Number uint64    // its number in FLOW_DEAD
	At     time.Time // when it was dead-lettered
	flow.Dead
	origin string // <lane>.<incarnation>.<sequence>.<index> of the original; of NoLane its hash
}

// DeadFilter selects dead letters. The zero value selects all.
type DeadFilter struct {
	Lane  *int      // of this lane only
	Code  string    // with this code only
	Since time.Time // dead-lettered at or after this time, by the server's clock
	Upto  uint64    // with at most this number; 0: all
	Heads bool      // without the Body
}

// Publish dead-letters d durably before it returns nil. It is idempotent per incarnation,
// sequence, and index, as long as the letter or its note exists: a letter that was replayed or
// dropped does not return when its message is read again. Without a lane, and so without a
// Topic, it is idempotent per source and bytes.
//
// Errors: flow.ErrFull if the dead-letter stream is full, flow.ErrDeadShare if the source has
// no share left and the letter was in no lane, flow.ErrUnavailable.
func (l *DeadLetters) Publish(ctx context.Context, d flow.Dead) error {
	if err := l.stream.ready(); err != nil {
		return err
	}
	inLane := d.Message.Topic != ""
	if !inLane {
		d = ofNoLane(d)
	}
	origin := flow.Origin(d.Message.Lane, d.Message.Incarnation, d.Message.Seq, d.Index)
	if inLane { // the note precedes the removal of the letter
		if outcome, err := l.settled(ctx, DeadLetter{origin: origin}); err != nil || outcome != "" {
			return err
		}
	}
	msg := &nats.Msg{Subject: DeadPrefix + origin, Header: deadHead(d), Data: d.Message.Body}
	if len(msg.Data) > packAbove && d.Message.Encoding == "" {
		msg.Header[headerPacked] = []string{flow.EncodingS2}
		msg.Data = s2.EncodeBest(nil, msg.Data) // it fitted into a message with weaker compression
	}
	leave, err := l.stream.room.enter(ctx, l.stream, d, storedSize(msg.Subject, msg.Header, len(msg.Data)))
	if err != nil {
		if refusedForRoom(err) && l.has(ctx, msg.Subject) {
			return nil // already stored
		}
		return fmt.Errorf("dead-letter message %d of lane %d: %w", d.Message.Seq, d.Message.Lane, err)
	}
	defer leave()
	_, err = l.stream.js.Publish(ctx, msg)
	switch {
	case err == nil:
		l.stream.m.dead.WithLabelValues(d.Code).Inc()
		return nil
	case isOneTooMany(err):
		return nil // already stored
	}
	_, _, answer := judge(err, facts{})
	if errors.Is(answer, flow.ErrFull) {
		answer = fmt.Errorf("%w: %w", errDeadFull, answer)
	}
	return fmt.Errorf("dead-letter message %d of lane %d: %w", d.Message.Seq, d.Message.Lane, answer)
}

// NoLane is the lane of letters that were never in one: the api dead-lettered them instead of
// publishing.
const NoLane = -1

// ofNoLane names a letter of no lane by the hash of its bytes.
func ofNoLane(d flow.Dead) flow.Dead {
	h := sha256.New()
	h.Write([]byte(d.Message.Source))
	h.Write([]byte{0})
	h.Write(d.Message.Body)
	sum := h.Sum(nil)
	d.Message.Lane, d.Message.Topic, d.Index = NoLane, RecordTopic(NoLane), 0
	d.Message.Incarnation, d.Message.Seq = binary.BigEndian.Uint64(sum), binary.BigEndian.Uint64(sum[8:])
	return d
}

// isOneTooMany reports whether the subject already has its message.
func isOneTooMany(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == codeStoreFailed && strings.Contains(api.Description, "per subject")
}

func deadHead(d flow.Dead) nats.Header {
	m := d.Message
	head := nats.Header{
		headerCode:     {d.Code},
		headerReason:   {d.Reason},
		headerIndex:    {strconv.Itoa(d.Index)},
		headerTopic:    {m.Topic},
		headerRecords:  {strconv.Itoa(m.Records)},
		headerReceived: {strconv.FormatInt(m.Received.UnixMilli(), 10)},
	}
	for name, value := range map[string]string{
		headerMessage: m.ID, headerEncoding: m.Encoding, headerSubject: m.Subject, headerSource: m.Source, headerTrace: m.TraceParent,
	} {
		if value != "" {
			head[name] = []string{value}
		}
	}
	return head
}

// parseDead decodes a message of FLOW_DEAD.
func parseDead(number uint64, at time.Time, subject string, head nats.Header, body []byte) (DeadLetter, error) {
	origin := strings.TrimPrefix(subject, DeadPrefix)
	lane, incarnation, seq, index, err := parseOrigin(origin)
	if err != nil {
		return DeadLetter{}, fmt.Errorf("dead letter %d: %w", number, err)
	}
	if first(head, headerPacked) != "" && len(body) > 0 {
		if body, err = s2.Decode(nil, body); err != nil {
			return DeadLetter{}, fmt.Errorf("dead letter %d: unpack: %w", number, err)
		}
	}
	d := DeadLetter{Number: number, At: at, origin: origin, Dead: flow.Dead{
		Message: decode(lane, seq, at, first(head, headerTopic), head, body),
		Index:   index,
		Code:    first(head, headerCode),
		Reason:  first(head, headerReason),
	}}
	d.Message.ID, d.Message.Incarnation = first(head, headerMessage), incarnation
	return d, nil
}

// parseOrigin reads <lane>.<incarnation>.<sequence>.<index>.
func parseOrigin(origin string) (lane int, incarnation, seq uint64, index int, err error) {
	if _, err := fmt.Sscanf(origin, "%d.%d.%d.%d", &lane, &incarnation, &seq, &index); err != nil {
		return 0, 0, 0, 0, fmt.Errorf("%q is not the origin of a record", origin)
	}
	return lane, incarnation, seq, index, nil
}

// Get returns one dead letter; ok is false if it does not exist.
func (l *DeadLetters) Get(ctx context.Context, number uint64) (d DeadLetter, ok bool, err error) {
	if err := l.stream.ready(); err != nil {
		return DeadLetter{}, false, err
	}
	raw, err := l.stream.js.Get(ctx, DeadStream, number, "")
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return DeadLetter{}, false, nil
	}
	if err != nil {
		return DeadLetter{}, false, unavailable(fmt.Errorf("dead letter %d: %w", number, err), 2*time.Second)
	}
	d, err = parseDead(raw.Sequence, raw.Time, raw.Subject, raw.Header, raw.Data)
	return d, err == nil, err
}

// Drop removes a dead letter permanently, and notes that it was dropped.
func (l *DeadLetters) Drop(ctx context.Context, d DeadLetter) error {
	if err := l.settle(ctx, d, OutcomeDropped); err != nil {
		return fmt.Errorf("drop dead letter %d: %w", d.Number, err)
	}
	// Noted. A crash here leaves a dropped letter; the next Drop removes it.
	return l.stream.remove(ctx, DeadStream, d.Number)
}

// Erase is Drop, and the server overwrites the bytes of the letter.
func (l *DeadLetters) Erase(ctx context.Context, d DeadLetter) error {
	if err := l.settle(ctx, d, OutcomeDropped); err != nil {
		return fmt.Errorf("erase dead letter %d: %w", d.Number, err)
	}
	err := l.stream.js.Delete(ctx, DeadStream, d.Number, true)
	if err == nil {
		return nil
	}
	if _, gone := l.stream.js.Get(ctx, DeadStream, d.Number, ""); errors.Is(gone, jetstream.ErrMsgNotFound) {
		return nil // removed by an attempt whose answer was lost
	}
	return unavailable(fmt.Errorf("erase dead letter %d: %w", d.Number, err), 2*time.Second)
}

// remove removes a dead letter, or a note about one.
func (s *Stream) remove(ctx context.Context, from string, number uint64) error {
	err := s.js.Delete(ctx, from, number, false)
	if err == nil {
		return nil
	}
	if _, gone := s.js.Get(ctx, from, number, ""); errors.Is(gone, jetstream.ErrMsgNotFound) {
		return nil // removed by another process, or by an attempt whose answer was lost
	}
	return unavailable(fmt.Errorf("remove message %d of %s: %w", number, from, err), 2*time.Second)
}

func (l *DeadLetters) Now(ctx context.Context) (time.Time, error) { return l.stream.Now(ctx) }

// List iterates over the present dead letters, oldest first.
func (l *DeadLetters) List(ctx context.Context, f DeadFilter) iter.Seq2[DeadLetter, error] {
	subject := DeadPrefix + ">"
	if f.Lane != nil {
		subject = DeadPrefix + strconv.Itoa(*f.Lane) + ".>"
	}
	return func(yield func(DeadLetter, error) bool) {
		for msg, err := range l.stream.scan(ctx, DeadStream, broker.From{Subject: subject, Since: f.Since, Heads: f.Heads}) {
			if err != nil {
				yield(DeadLetter{}, fmt.Errorf("list dead letters: %w", err))
				return
			}
			if f.Upto > 0 && msg.Seq > f.Upto {
				return
			}
			d, err := parseDead(msg.Seq, msg.At, msg.Subject, msg.Header, msg.Data)
			if err == nil && f.Code != "" && d.Code != f.Code {
				continue
			}
			if !yield(d, err) {
				return
			}
		}
	}
}

// Headers of a note of the outcome of a dead letter.
const (
	headerOutcome = "Sluice-Outcome"
	headerBy      = "Sluice-By" // its author, base64url: a token's subject, or an operator's name
)

// Outcomes of dead letters.
const (
	OutcomeDead     = "dead"     // not settled yet
	OutcomeReplayed = "replayed" // published again, as a message of its own
	OutcomeDropped  = "dropped"  // dropped by an operator
)

// Resolution is the outcome of a dead-lettered record or message.
type Resolution struct {
	Lane        int
	Incarnation uint64 // of the lane
	Seq         uint64
	Index       int    // -1 for the whole message
	Outcome     string // dead, replayed or dropped
}

// Resolutions iterates over the outcomes of all dead letters, of all incarnations, as long as
// the lane holds the message. An origin may occur twice: it is then settled. Letters written or
// settled meanwhile may be missing, but none is missed between letter and note: the note is
// written before the letter is removed, and read after it.
func (l *DeadLetters) Resolutions(ctx context.Context) iter.Seq2[Resolution, error] {
	return func(yield func(Resolution, error) bool) {
		for _, from := range []struct{ stream, prefix string }{{DeadStream, DeadPrefix}, {NoteStream, SettledPrefix}} {
			for msg, err := range l.stream.scan(ctx, from.stream, broker.From{Subject: from.prefix + ">", Heads: true}) {
				if err != nil {
					yield(Resolution{}, fmt.Errorf("read dead letters: %w", err))
					return
				}
				outcome := cmp.Or(first(msg.Header, headerOutcome), OutcomeDead)
				lane, incarnation, seq, index, err := parseOrigin(strings.TrimPrefix(msg.Subject, from.prefix))
				if !yield(Resolution{lane, incarnation, seq, index, outcome}, err) {
					return
				}
			}
		}
	}
}

// Settled is a note of the outcome of a dead letter.
type Settled struct {
	Resolution // origin and outcome
	At         time.Time
	By         string // empty: unknown
	Code       string // why it was dead-lettered; empty: unknown
}

// Settled iterates over the notes about replayed or dropped letters, oldest first, as long as
// the lane holds the message.
func (l *DeadLetters) Settled(ctx context.Context) iter.Seq2[Settled, error] {
	return func(yield func(Settled, error) bool) {
		for msg, err := range l.stream.scan(ctx, NoteStream, broker.From{Subject: SettledPrefix + ">", Heads: true}) {
			if err != nil {
				yield(Settled{}, fmt.Errorf("read the outcomes of dead letters: %w", err))
				return
			}
			head := msg.Header
			s := Settled{At: msg.At, Code: first(head, headerCode)}
			s.Resolution.Outcome = first(head, headerOutcome)
			if by, err := base64.RawURLEncoding.DecodeString(first(head, headerBy)); err == nil {
				s.By = string(by)
			}
			s.Lane, s.Incarnation, s.Seq, s.Index, err = parseOrigin(strings.TrimPrefix(msg.Subject, SettledPrefix))
			if !yield(s, err) {
				return
			}
		}
	}
}

// settle notes the outcome of a letter. The first note counts.
func (l *DeadLetters) settle(ctx context.Context, d DeadLetter, outcome string) error {
	head := nats.Header{headerOutcome: {outcome}, headerCode: {d.Code}}
	if l.by != "" {
		head[headerBy] = []string{base64.RawURLEncoding.EncodeToString([]byte(l.by))}
	}
	_, err := l.stream.js.Publish(ctx, &nats.Msg{Subject: SettledPrefix + d.origin, Header: head})
	if err != nil && !isOneTooMany(err) {
		_, _, answer := judge(err, facts{})
		return fmt.Errorf("note that it is %s: %w", outcome, answer)
	}
	return nil
}

// settled is the outcome in a letter's note, empty if none.
func (l *DeadLetters) settled(ctx context.Context, d DeadLetter) (string, error) {
	note, err := l.stream.js.Last(ctx, NoteStream, SettledPrefix+d.origin)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return "", nil
	}
	if err != nil {
		return "", unavailable(err, 2*time.Second)
	}
	return first(note.Header, headerOutcome), nil
}

// forgetSettled removes the notes about messages of a lane before keep, and those of other
// incarnations than lives.
func (l *DeadLetters) forgetSettled(ctx context.Context, lane *Lane, keep uint64, lives ...uint64) error {
	info, err := l.stream.js.Info(ctx, NoteStream, SettledPrefix+strconv.Itoa(lane.Number)+".>")
	if err != nil {
		return unavailable(fmt.Errorf("read notes about dead letters: %w", err), 2*time.Second)
	}
	for subject := range info.State.Subjects {
		_, life, seq, _, err := parseOrigin(strings.TrimPrefix(subject, SettledPrefix))
		if err == nil && slices.Contains(lives, life) && seq >= keep {
			continue
		}
		if err := l.stream.js.Purge(ctx, NoteStream, subject, 0); err != nil {
			return unavailable(fmt.Errorf("remove a note about a dead letter: %w", err), 2*time.Second)
		}
	}
	return nil
}

// DeadRoom is the usage of the dead-letter stream.
type DeadRoom struct {
	Letters, Bytes uint64
	Max            int64  // size limit
	Last           uint64 // number of the newest one
}

// Room looks up the usage of the dead-letter stream.
func (l *DeadLetters) Room(ctx context.Context) (DeadRoom, error) {
	if err := l.stream.ready(); err != nil {
		return DeadRoom{}, err
	}
	info, err := l.stream.js.Info(ctx, DeadStream, "")
	if err != nil {
		return DeadRoom{}, unavailable(fmt.Errorf("look up dead letters: %w", err), 2*time.Second)
	}
	return DeadRoom{info.State.Msgs, info.State.Bytes, info.Config.MaxBytes, info.State.LastSeq}, nil
}
