package stream

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"sluice/pkg/flow"
)

// gatherer gathers what waits for a lane into entries, one in flight at a time:
// two would share the same writer in the server, and each have half of the
// requests. What comes while one is in flight goes into the next. So no request
// waits for company, and the slower the disk, the larger the entries.
type gatherer struct {
	p      *Publisher
	number int // of the lane

	mu      sync.Mutex
	waiting []*piece // in order of arrival
	flying  bool     // fly runs

	// Owned by fly.
	entry  flow.EntryWriter // its memory, used again
	pieces []*piece         // that it has
	of     known            // what was known when it was made
	known  known            // what is known now
}

// known is how far a lane was at a time.
type known struct {
	life time.Time // of the stream
	last uint64    // a message of it,
	at   time.Time // and a time at which there was none behind it
}

// piece is what of a request goes into one entry, with what else it takes to
// send it.
type piece struct {
	message flow.Message
	slot    int // which of the lanes of its source it goes to,
	slots   int // of how many
	lane    *Lane
	since   time.Time  // when it began to wait
	until   time.Time  // it must not be sent later: its source may have other lanes by then
	told    chan error // gets its outcome, and nothing else
	flight  *flight    // that it is in, nil while it waits; owned by the gatherer's lock
}

// flight is an entry on its way.
type flight struct {
	waiting int                // pieces that a caller still waits for; owned by the gatherer's lock
	end     context.CancelFunc // ends it: no piece waits any more
}

// add lets pieces wait for the next entry.
func (g *gatherer) add(list []*piece) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	for _, pc := range list {
		pc.since = now
	}
	g.waiting = append(g.waiting, list...)
	if !g.flying {
		g.flying = true
		// It ends when nothing waits any more: every caller of Publish
		// waits for it.
		go g.fly()
	}
}

// leave takes a piece out that is not waited for any more. It says whether the
// piece was never sent.
func (g *gatherer) leave(pc *piece) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.waiting, pc); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
		return true
	}
	if f := pc.flight; f != nil {
		if f.waiting--; f.waiting == 0 {
			f.end()
		}
	}
	return false
}

// fly sends entries as long as something waits.
func (g *gatherer) fly() {
	for {
		ctx, f := g.take()
		if f == nil {
			return
		}
		sending, span := g.sending(ctx)
		err := g.send(sending)
		endSpan(span, err)
		f.end()
		if err == nil {
			g.count()
		}
		for _, pc := range g.pieces {
			pc.told <- err
		}
		clear(g.pieces)
	}
}

// take fills an entry with what waits. The bodies are copied: a piece may be
// left by its submitter while it is in flight.
func (g *gatherer) take() (context.Context, *flight) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pieces = g.pieces[:0]
	now, n := time.Now(), 0
	for ; n < len(g.waiting); n++ {
		pc := g.waiting[n]
		if passed(now, pc.until) {
			pc.told <- errAnew
			continue
		}
		if len(g.pieces) == 0 {
			g.know(pc.lane)
			g.of = g.known
			g.entry.Reset(g.of.last, g.p.stream.cfg.RepeatWindow/2)
		}
		if pc.lane.Created != g.of.life || !g.entry.Add(&pc.message) {
			break
		}
		g.pieces = append(g.pieces, pc)
	}
	clear(g.waiting[:n])
	if g.waiting = g.waiting[n:]; len(g.waiting) == 0 {
		g.waiting = nil
	}
	if len(g.pieces) == 0 {
		g.flying = false
		return nil, nil
	}
	ctx, end := context.WithCancel(context.Background())
	f := &flight{waiting: len(g.pieces), end: end}
	for _, pc := range g.pieces {
		pc.flight = f
	}
	return ctx, f
}

// know learns from a look-up how far the lane is.
func (g *gatherer) know(lane *Lane) {
	if lane.Created != g.known.life || lane.Last > g.known.last {
		g.known = known{lane.Created, lane.Last, lane.Looked}
	}
}

// send makes the entry durable. Every attempt sends the same bytes under the same
// id, so that the lane tells a second copy from a second entry.
func (g *gatherer) send(ctx context.Context) error {
	lane := g.pieces[0].lane
	msg := &nats.Msg{Subject: RecordTopic(lane.Number), Data: g.entry.Body(), Header: nats.Header{
		headerID:    {nuid.Next()},
		headerEntry: {g.entry.Header()},
	}}
	a := g.p.attempts()
	a.since = g.pieces[0].since
	a.full = func(err error) error {
		return &flow.RetryError{Err: err, After: g.p.stream.roomAfter(lane.Number, len(g.entry.Body())+len(g.entry.Table()))}
	}
	begun := time.Now()
	return a.until(ctx, func() error {
		if err := g.stillRouted(ctx, &a); err != nil {
			return err
		}
		got, err := g.p.stream.request(ctx, lane, msg)
		if err != nil {
			return err
		}
		return g.taken(ctx, lane, got.Sequence, begun)
	})
}

// taken is told that the lane has taken the entry. One that came too late counts
// for nothing: an ingester skips it, because the request may have been repeated
// and forgotten since. While the clocks say that this cannot be, it does not look.
func (g *gatherer) taken(ctx context.Context, lane *Lane, seq uint64, begun time.Time) error {
	if seq <= g.of.last {
		// The lane was made again, or set back. What it has taken is void there:
		// it goes out again once the lane is known as it is.
		g.known = known{lane.Created, seq, begun}
		if _, err := g.p.stream.lookNow(ctx); err != nil {
			return err
		}
		return errAnew
	}
	if g.known.last < seq {
		g.known.last, g.known.at = seq, begun
	}
	g.p.others.sent(lane.Number, seq)
	window := g.p.stream.cfg.RepeatWindow
	if !passed(time.Now(), g.of.at.Add(window/4)) {
		return nil
	}
	age, err := g.p.stream.age(ctx, lane.Number, g.of.last+1, seq)
	if err != nil {
		return fmt.Errorf("%w: %w", errStale, err) // it is sent again, known by its id, and looked at again
	}
	if age > window/2 {
		return fmt.Errorf("%w: the lane has moved on by %v", errVoid, age)
	}
	return nil
}

// stillRouted makes sure that the entry may be sent to its lane.
func (g *gatherer) stillRouted(ctx context.Context, a *attempts) error {
	now := time.Now()
	if !slices.ContainsFunc(g.pieces, func(pc *piece) bool { return passed(now, pc.until) }) {
		return nil
	}
	v, err := g.p.stream.routable(ctx)
	if err != nil {
		return err
	}
	for _, pc := range g.pieces {
		lane, err := g.p.lane(v, pc.message.Source, pc.slot, pc.slots)
		switch {
		case err == nil && lane != nil && lane.Number == g.number && lane.Created.Equal(g.of.life):
			pc.until = g.p.stream.until(v)
		case a.uncertain:
			// It may be in the lane from before. What has an identity is known
			// there when it is sent again.
			return errMoved
		default:
			return errAnew
		}
	}
	return nil
}

// count counts what has become durable.
func (g *gatherer) count() {
	m := g.p.stream.m
	m.messages.Inc()
	m.requests.Observe(float64(len(g.pieces)))
	m.bytes.Add(float64(len(g.entry.Body())))
	records := 0
	for _, pc := range g.pieces {
		records += pc.message.Records
	}
	m.records.Add(float64(records))
}

// route gives pieces of one source the lanes that it has now.
func (p *Publisher) route(ctx context.Context, a *attempts, list []*piece) error {
	name := list[0].message.Source
	_, v, err := p.source(ctx, a, name)
	if err != nil {
		return err
	}
	for _, pc := range list {
		lane, err := p.lane(v, name, pc.slot, pc.slots)
		if err != nil {
			return err
		}
		if lane == nil {
			if v, err = p.stream.lookNow(ctx); err != nil { // it may be newer than the look-up
				return err
			}
			if lane, err = p.lane(v, name, pc.slot, pc.slots); err != nil {
				return err
			}
			if lane == nil {
				return held(10*time.Second, "lane %d of %q is missing", v.sources[name].Lanes[pc.slot], name)
			}
		}
		pc.lane, pc.until = lane, p.stream.until(v)
		pc.message.Lane = lane.Number
	}
	return nil
}

// lane is where the records of a slot go, of so many slots. It is nil when the
// lane is not known.
func (p *Publisher) lane(v *view, source string, slot, slots int) (*Lane, error) {
	known := v.sources[source]
	switch {
	case known == nil || len(known.Lanes) == 0:
		return nil, held(10*time.Second, "the entry of %q is damaged", source)
	case known.Moving != nil:
		return nil, held(10*time.Second, "%q is being moved to lanes %v", source, known.Moving)
	case len(known.Lanes) != slots:
		return nil, held(time.Second, "%q has %d lanes by now", source, len(known.Lanes))
	}
	lane, _ := v.lane(known.Lanes[slot])
	return lane, nil
}

// source finds a source, as it was looked up a short time ago; one that is first
// seen gets its lanes.
func (p *Publisher) source(ctx context.Context, a *attempts, name string) (*Source, *view, error) {
	begun := time.Now()
	v, err := p.stream.routable(ctx)
	known := (*Source)(nil)
	if err == nil {
		if known = v.sources[name]; known == nil {
			known, v, err = p.first(ctx, name)
		}
	}
	if err != nil {
		if a.silent.IsZero() { // it has waited for an answer
			if a.silent = begun; !a.since.IsZero() {
				a.silent = a.link.silentSince(a.since)
			}
		}
		return nil, nil, err
	}
	if len(known.Lanes) == 0 {
		return nil, nil, held(10*time.Second, "the entry of %q is damaged", name)
	}
	return known, v, nil
}

// first gives a new source its lanes: all there are now.
func (p *Publisher) first(ctx context.Context, name string) (*Source, *view, error) {
	v, err := p.stream.lookNow(ctx)
	if err != nil {
		return nil, nil, err
	}
	if known := v.sources[name]; known != nil {
		return known, v, nil
	}
	asking, done := p.stream.link.attempt(ctx, patience)
	err = lost(asking, p.stream.meet(asking, name, v.lanes))
	done()
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errStale, err)
	}
	// Met. A crash here leaves a source without records.
	if v, err = p.stream.lookNow(ctx); err != nil {
		return nil, nil, err
	}
	known := v.sources[name]
	if known == nil {
		return nil, nil, fmt.Errorf("%w: source %q is not there yet", errStale, name)
	}
	return known, v, nil
}

// worse says whether a submitter should rather hear of err than of other: that
// it will never go in, or that it is not known whether it is in.
func worse(err, other error) bool {
	if err == nil || other == nil {
		return err != nil
	}
	for _, first := range []error{flow.ErrKeyReused, flow.ErrTooLarge, flow.ErrUnavailable} {
		if errors.Is(other, first) {
			return false
		}
		if errors.Is(err, first) {
			return true
		}
	}
	return false
}

// readEntry turns a message of a lane into the domain's. One without a table was
// not written by an api: it is a change, a fence, or by hand, and what its
// headers say about it.
func readEntry(lane int, seq uint64, at time.Time, topic string, head nats.Header, body []byte) flow.Entry {
	e := flow.Entry{Lane: lane, Seq: seq, Topic: topic, Stored: at, Body: body}
	text := first(head, headerEntry)
	if text == "" {
		e.Messages = []flow.Message{decode(lane, seq, at, topic, head, body)}
		return e
	}
	table, err := base64.RawStdEncoding.DecodeString(text)
	if err == nil {
		e.Table = table
		err = e.Parse(table, body)
	} else {
		err = fmt.Errorf("the table of the entry is not base64: %w", err)
	}
	if err != nil {
		e.Err = err
		e.Messages = []flow.Message{decode(lane, seq, at, topic, head, body)}
	}
	return e
}

// decode turns a message without a table, or a dead letter, into the domain's.
func decode(lane int, seq uint64, at time.Time, topic string, head nats.Header, body []byte) flow.Message {
	m := flow.Message{
		Lane: lane, Seq: seq, Topic: topic, Body: body,
		Received:    at.UTC().Truncate(time.Millisecond), // fallback for foreign messages: a zero time would expire at once
		ID:          first(head, headerID),
		Encoding:    first(head, headerEncoding),
		Subject:     first(head, headerSubject),
		Source:      first(head, headerSource),
		TraceParent: first(head, headerTrace),
	}
	// A number that does not parse was not written by us; the ingester counts
	// the records itself.
	m.Records, _ = strconv.Atoi(first(head, headerRecords))
	if ms, err := strconv.ParseInt(first(head, headerReceived), 10, 64); err == nil {
		m.Received = time.UnixMilli(ms).UTC()
	}
	return m
}

// first is the first value of a header, its name as written.
func first(head nats.Header, name string) string {
	if v := head[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}
