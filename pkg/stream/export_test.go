package stream

import (
	"context"
	"time"

	"sluice/pkg/flow"
)

// ErrStale reports that lanes were looked up too long ago.
var ErrStale = errStale

// Route routes submissions of one source to lane 0. It returns a func that sends them in one entry
// at any later time.
func (p *Publisher) Route(ctx context.Context, subs ...*flow.Submission) (send func() error) {
	source, v, err := p.route(ctx, subs[0].Source)
	if err != nil {
		return func() error { return err }
	}
	lane, _ := v.lane(0)
	return func() error {
		q := p.held()
		var all request
		for _, sub := range subs {
			chunks, err := sub.Records.Cut(1)
			if err != nil {
				return err
			}
			all.batches = append(all.batches, q.add(sub, source, lane, p.stream.until(v), chunks)...)
		}
		q.publishLoop()
		_, _, err := all.wait(ctx)
		return err
	}
}

// SendTwice sends one entry of a submission of a known source. Once between has returned it sends
// the entry again, as after a lost answer.
func (p *Publisher) SendTwice(ctx context.Context, sub *flow.Submission, between func()) (first, second error) {
	source, v, err := p.route(ctx, sub.Source)
	if err != nil {
		return err, err
	}
	chunks, err := sub.Records.Cut(1)
	if err != nil {
		return err, err
	}
	lane, _ := v.lane(0)
	q := p.held()
	q.add(sub, source, lane, p.stream.until(v), chunks)
	b := q.next()
	_, first = q.send(ctx, b)
	between()
	_, second = q.send(ctx, b)
	q.next() // none: q is idle again
	return first, second
}

// held is the batcher of lane 0, whose publishLoop has ended and does not start.
func (p *Publisher) held() *batcher {
	q := p.batcher(0)
	for {
		q.mu.Lock()
		idle := !q.running
		q.running = true
		q.mu.Unlock()
		if idle {
			return q
		}
		time.Sleep(time.Millisecond)
	}
}

// Expect is the start of a linger on lane 0, after an entry of this size; arrived reports its end.
func (p *Publisher) Expect(answered, size int) (arrived func() bool) {
	c := p.batcher(0).expect(answered, size)
	return func() bool {
		select {
		case <-c:
			return true
		default:
			return c == nil
		}
	}
}

// Hold queues everything for lane 0 until release is called; queued is the number of chunks.
func (p *Publisher) Hold() (queued func() int, release func()) {
	q := p.held()
	return func() int { q.mu.Lock(); defer q.mu.Unlock(); return q.chunks }, func() { go q.publishLoop() }
}

// ErrMoved and ErrVoid are causes of a failed batch that the lane did not refuse.
var ErrMoved, ErrVoid = errMoved, errVoid

// ErrSilent reports that a server withholds messages.
var ErrSilent = errSilent

// Passes reports whether opening is retried after an error.
var Passes = passes

// SeenAll reports whether a scan that has read up to a message has reached the end.
func (s *Stream) SeenAll(ctx context.Context, stream, subject string, seen, end uint64) error {
	return s.seenAll(ctx, stream, subject, seen, end)
}

// SetSilence sets how long a reader gets no message before it checks the stream.
func (s *Stream) SetSilence(d time.Duration) { s.silence = d }

// SetSettle sets how long a new leader has to catch up.
func (s *Stream) SetSettle(d time.Duration) { s.settle = d }

// Origin identifies a dead letter in its subjects.
func Origin(d DeadLetter) string { return d.origin }

// KeepFrom is the first sequence a Purger keeps.
var KeepFrom = keepFrom

// SetMargin sets a Purger's margin beyond the duplicate window.
func (p *Purger) SetMargin(d time.Duration) { p.margin = d }

// SetStep sets the interval of ticks.
func (p *Purger) SetStep(d time.Duration) { p.step = d }

// ErrDisconnected ends an attempt whose connection was lost.
var ErrDisconnected = errDisconnected

// Judge is the verdict on a failed attempt at a message, in flight or unsure, and the submitter's
// answer.
func Judge(err error, inFlight, unsure bool) (string, error) {
	v, _, answer := judge(err, facts{inFlight, unsure})
	return [...]string{"give up", "again", "unknown", "cut", "unreached"}[v], answer
}

// FreeAfter is the retry delay that a lane's publishers get for need bytes. Each observation is
// seconds since the first and the first sequence, of a lane with messages of 100 bytes.
func FreeAfter(need int, seen ...[2]int) time.Duration {
	var d freeRate
	begin := time.Unix(1_700_000_000, 0)
	now := begin
	for _, s := range seen {
		now = begin.Add(time.Duration(s[0]) * time.Second)
		d.observe(&Lane{First: uint64(s[1]), Messages: 10, Bytes: 1000}, now)
	}
	return d.after(need, now)
}

// PutMarker puts a move marker into a lane.
func (s *Stream) PutMarker(ctx context.Context, lane int, source Source) (uint64, error) {
	return s.putMarker(ctx, lane, source)
}

// Stand is a lane state as stored, whatever the lane holds.
func (p *LaneStates) Stand(ctx context.Context, lane int) (flow.LaneState, error) {
	return p.entry(ctx, lane)
}

// RecountEvery is the least interval of counts of all dead letters.
const RecountEvery = recountEvery

// AskMonitors queries the monitoring pages once.
func (s *Stream) AskMonitors(ctx context.Context) { s.askMonitors(ctx) }

// Explained is explained.
func (s *Stream) Explained(err error) error { return s.explained(err) }
