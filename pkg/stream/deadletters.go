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

// Headers of a dead letter, beside those of its message.
const (
	headerCode    = "Sluice-Code"
	headerReason  = "Sluice-Reason"
	headerIndex   = "Sluice-Index" // of the record in its message; -1 for the whole message
	headerTopic   = "Sluice-Topic" // NATS subject it was published to
	headerMessage = "Sluice-Msg-Id"
	headerPacked  = "Sluice-Packed" // s2 when the letter's body is compressed to be kept; its message's own encoding stands apart
)

// packAbove is the size from which a letter's body is compressed: a record on
// its own may be larger than the message it came in.
const packAbove = 512 << 10

// DeadLetters keeps what cannot be stored, as it was, until an operator replays
// or drops it.
type DeadLetters struct {
	stream *Stream
	by     string // who replays and drops, for the notes; empty when it is not said
}

// NewDeadLetters returns the DeadLetters of s.
func NewDeadLetters(s *Stream) *DeadLetters { return &DeadLetters{stream: s} }

// As is the same dead letters, replayed and dropped under a name, which the
// notes about them keep.
func (l *DeadLetters) As(by string) *DeadLetters { return &DeadLetters{stream: l.stream, by: by} }

// DeadLetter is one record, or one whole message, that was set aside.
type DeadLetter struct {
	Number uint64    // its name here
	At     time.Time // when it was set aside
	flow.Dead
	origin string // <lane>.<incarnation>.<sequence>.<index>: what it was, for ever; of NoLane the hash of it
}

// DeadFilter picks dead letters. The zero value picks all.
type DeadFilter struct {
	Lane  *int      // of this lane only
	Code  string    // with this code only
	Since time.Time // set aside then or later, by the server's clock
	Upto  uint64    // with this number or a lower one only, when it is not 0
	Heads bool      // without what was set aside: its Body is empty
}

// SetAside keeps d durably before it returns nil. It is idempotent per life of
// the lane, sequence and index, for as long as the letter or the note about it is kept:
// a letter that was replayed or dropped does not come back when its message is read
// again, as after a crash or a restore. Of what never was in a lane, and so has no Topic,
// it is per source and bytes.
//
// Errors: flow.ErrFull when there is no room for more dead letters, flow.ErrDeadShare
// when the source has no share of it left and the letter was in no lane,
// flow.ErrUnavailable.
func (l *DeadLetters) SetAside(ctx context.Context, d flow.Dead) error {
	if err := l.stream.ready(); err != nil {
		return err
	}
	inLane := d.Message.Topic != ""
	if !inLane {
		d = ofNoLane(d)
	}
	origin := flow.Origin(d.Message.Lane, d.Message.Incarnation, d.Message.Seq, d.Index)
	if inLane { // the note comes before the letter goes
		if outcome, err := l.settled(ctx, DeadLetter{origin: origin}); err != nil || outcome != "" {
			return err
		}
	}
	msg := &nats.Msg{Subject: DeadPrefix + origin, Header: deadHead(d), Data: d.Message.Body}
	if len(msg.Data) > packAbove && d.Message.Encoding == "" {
		msg.Header[headerPacked] = []string{flow.EncodingS2}
		msg.Data = s2.EncodeBest(nil, msg.Data) // it fitted into a message, compressed less well
	}
	leave, err := l.stream.room.enter(ctx, l.stream, d, storedSize(msg.Subject, msg.Header, len(msg.Data)))
	if err != nil {
		if refusedForRoom(err) && l.has(ctx, msg.Subject) {
			return nil // it is there already
		}
		return fmt.Errorf("set aside message %d of lane %d: %w", d.Message.Seq, d.Message.Lane, err)
	}
	defer leave()
	_, err = l.stream.js.Publish(ctx, msg)
	switch {
	case err == nil:
		l.stream.m.dead.WithLabelValues(d.Code).Inc()
		return nil
	case isOneTooMany(err):
		return nil // it is there already
	}
	_, _, answer := judge(err, facts{})
	if errors.Is(answer, flow.ErrFull) {
		answer = fmt.Errorf("%w: %w", errDeadFull, answer)
	}
	return fmt.Errorf("set aside message %d of lane %d: %w", d.Message.Seq, d.Message.Lane, answer)
}

// NoLane is the lane of letters that never were in one: the api has set them
// aside instead of publishing them.
const NoLane = -1

// ofNoLane gives a letter of no lane the name that its bytes have.
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

// isOneTooMany: the subject has its one message.
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

// parseDead turns a message of FLOW_DEAD back into a letter.
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
		return 0, 0, 0, 0, fmt.Errorf("%q does not name a record of ours", origin)
	}
	return lane, incarnation, seq, index, nil
}

// Get returns one dead letter; ok is false when there is none of that number.
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

// Drop removes a dead letter for ever, and notes that it was given up.
func (l *DeadLetters) Drop(ctx context.Context, d DeadLetter) error {
	if err := l.settle(ctx, d, OutcomeDropped); err != nil {
		return fmt.Errorf("drop dead letter %d: %w", d.Number, err)
	}
	// Noted. A crash here leaves a letter that is dropped, to be dropped again.
	return l.stream.remove(ctx, DeadStream, d.Number)
}

// Erase is Drop, and the server writes over the bytes of the letter.
func (l *DeadLetters) Erase(ctx context.Context, d DeadLetter) error {
	if err := l.settle(ctx, d, OutcomeDropped); err != nil {
		return fmt.Errorf("erase dead letter %d: %w", d.Number, err)
	}
	err := l.stream.js.Delete(ctx, DeadStream, d.Number, true)
	if err == nil {
		return nil
	}
	if _, gone := l.stream.js.Get(ctx, DeadStream, d.Number, ""); errors.Is(gone, jetstream.ErrMsgNotFound) {
		return nil // in an attempt whose answer was lost
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
		return nil // another process has, or this one in an attempt whose answer was lost
	}
	return unavailable(fmt.Errorf("remove message %d of %s: %w", number, from, err), 2*time.Second)
}

// Now is the Stream's.
func (l *DeadLetters) Now(ctx context.Context) (time.Time, error) { return l.stream.Now(ctx) }

// List gives the dead letters that are there now, oldest first.
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

// Headers of a note that a dead letter is settled.
const (
	headerOutcome = "Sluice-Outcome"
	headerBy      = "Sluice-By" // its author, base64url: a token's subject, or an operator's name
)

// Outcomes of what was set aside.
const (
	OutcomeDead     = "dead"     // it is among the dead letters
	OutcomeReplayed = "replayed" // it was sent again, and is a message of its own since
	OutcomeDropped  = "dropped"  // an operator has given it up
)

// Resolution says what became of a record, or a whole message, that was set aside.
type Resolution struct {
	Lane        int
	Incarnation uint64 // life of the lane
	Seq         uint64
	Index       int    // -1 for the whole message
	Outcome     string // dead, replayed or dropped
}

// Resolutions gives the outcome of everything that was set aside, of any life of a lane,
// for as long as the lane holds the message; the same origin may come twice, and
// then is settled. What is set aside or settled while it runs may
// come or not, but nothing is missed on its way from letter to settled: the note
// that it is settled is there before the letter goes, and is looked for after.
func (l *DeadLetters) Resolutions(ctx context.Context) iter.Seq2[Resolution, error] {
	return func(yield func(Resolution, error) bool) {
		for _, from := range []struct{ stream, prefix string }{{DeadStream, DeadPrefix}, {NoteStream, SettledPrefix}} {
			for msg, err := range l.stream.scan(ctx, from.stream, broker.From{Subject: from.prefix + ">", Heads: true}) {
				if err != nil {
					yield(Resolution{}, fmt.Errorf("read what was set aside: %w", err))
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

// Settled is a note of what became of a dead letter, and by whom.
type Settled struct {
	Resolution // what it was, and what became of it
	At         time.Time
	By         string // empty where the note does not say
	Code       string // why it was set aside; empty where the note does not say
}

// Settled gives the notes about letters that were replayed or dropped, oldest
// first, for as long as the lane holds the message.
func (l *DeadLetters) Settled(ctx context.Context) iter.Seq2[Settled, error] {
	return func(yield func(Settled, error) bool) {
		for msg, err := range l.stream.scan(ctx, NoteStream, broker.From{Subject: SettledPrefix + ">", Heads: true}) {
			if err != nil {
				yield(Settled{}, fmt.Errorf("read what became of dead letters: %w", err))
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

// settle notes what became of a letter. The first note stands.
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

// settled is the outcome a letter has by its note, empty when there is none.
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

// forgetSettled removes the notes about messages of a lane before keep, and
// about those of other lives of it than these.
func (l *DeadLetters) forgetSettled(ctx context.Context, lane *Lane, keep uint64, lives ...uint64) error {
	info, err := l.stream.js.Info(ctx, NoteStream, SettledPrefix+strconv.Itoa(lane.Number)+".>")
	if err != nil {
		return unavailable(fmt.Errorf("look up settled dead letters: %w", err), 2*time.Second)
	}
	for subject := range info.State.Subjects {
		_, life, seq, _, err := parseOrigin(strings.TrimPrefix(subject, SettledPrefix))
		if err == nil && slices.Contains(lives, life) && seq >= keep {
			continue
		}
		if err := l.stream.js.Purge(ctx, NoteStream, subject, 0); err != nil {
			return unavailable(fmt.Errorf("forget a settled dead letter: %w", err), 2*time.Second)
		}
	}
	return nil
}

// DeadRoom is what there is of dead letters.
type DeadRoom struct {
	Letters, Bytes uint64
	Max            int64  // bytes they may take
	Last           uint64 // number of the newest one; what is dead-lettered from now on has a higher one
}

// Room looks up how many dead letters there are.
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
