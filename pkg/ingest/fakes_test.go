package ingest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/record"
)

type fault int

const (
	none         fault = iota
	failed             // not applied, reported failed
	applied            // applied, reported failed
	partly             // an insert only: stored in the table, not in its view; reported failed
	later              // reported failed, and applied a while later: an insert, a lane state or a dead letter
	crashedFirst       // the process dies before the step
	crashedAfter       // the process dies after the step, before its answer
	paused             // the process pauses before the step for a long time, then resumes
	faults             // number of faults
)

func (f fault) String() string {
	return [...]string{"no fault", "failed", "applied but reported failed", "partly applied", "applied later", "crashed before", "crashed after", "paused"}[f]
}

// A call that is applied later and a paused process last long enough for another process to take
// the lanes.
const (
	laterTime = 20 * time.Second
	pauseTime = 10 * time.Minute
)

var errInjected = errors.New("injected")

// place is the position of a record in the stream.
type place struct {
	Seq   uint64
	Index int
}

// world is the state that outlives a process: the stream, the lane state, the warehouse, the dead
// letters and the state store.
type world struct {
	mu       sync.Mutex
	identity string
	created  int64         // when the stream was made, ms
	messages []flow.Entry  // message i has sequence i+1
	arrived  chan struct{} // closed when a message comes
	purged   uint64        // messages up to here are gone

	orders   []flow.Forget
	revision uint64 // of the lanes of every source
	state    flow.LaneState
	applying flow.LaneState // the checkpoint of changes
	underway sync.WaitGroup // calls that are applied later
	sleeping int            // paused processes

	table, view  map[place]int             // how often each record is there
	rows, viewed []row                     // of the table; those its views have received
	tokens       map[string]map[string]int // per table and view: the rows stored under each token
	partsSince   uint64                    // inserted since any claim made at partsAt or later
	partsAt      time.Time                 // any age when zero
	lags         bool                      // a replica has no row
	inserting    bool                      // an insert of a dead process is running
	skew         time.Duration             // of ClickHouse's clock
	line         string                    // the last stored day whose rows may have expired
	refuse       func(*record.Columns, int) bool
	dead         map[place]string // code of each dead letter
	bodies       map[place]string // bytes of each dead letter
	full         bool             // no room for dead letters
	changes      []uint64         // sequences applied, without repeats within a life
	applied      uint64           // greatest incarnation of those
	written      map[uint64]bool  // sequences of recorded changes

	step    int
	fault   func(step int, op string) fault
	before  func(op string) // runs before every step; may block
	history []string
	broken  []string // rules that were broken
	insert  func(record.Block) error
}

func newWorld() *world {
	return &world{
		identity: "FLOW_0@1", arrived: make(chan struct{}), revision: 10,
		table: map[place]int{}, view: map[place]int{},
		tokens: map[string]map[string]int{"table": {}, "view": {}},
		dead:   map[place]string{}, bodies: map[place]string{}, written: map[uint64]bool{},
		refuse: func(*record.Columns, int) bool { return false },
		fault:  func(int, string) fault { return none },
		before: func(string) {},
		insert: func(record.Block) error { return nil },
	}
}

func (w *world) publish(messages ...flow.Message) {
	for _, m := range messages {
		w.publishEntry(flow.Entry{Topic: m.Topic, Body: m.Body, Messages: []flow.Message{m}})
	}
}

func (w *world) publishEntry(e flow.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.Seq = uint64(len(w.messages) + 1)
	if e.Stored.IsZero() {
		e.Stored = time.Unix(0, 1_000+int64(e.Seq))
	}
	index := 0
	for i := range e.Messages {
		m := &e.Messages[i]
		m.Seq, m.Ordinal, m.Index = e.Seq, i, index
		index += m.Records
	}
	w.messages = append(w.messages, e)
	close(w.arrived)
	w.arrived = make(chan struct{})
}

type row struct {
	flow.Identity
	place
	lane        int
	incarnation uint64
	storedAt    int64
}

// process is one process's access to the world. After a crash its calls have no effect.
type process struct {
	*world
	name   string
	crash  context.CancelFunc
	gone   bool
	paused bool
	ended  bool // its work has
}

// do runs one step with its fault. Fake steps take no time.
func (p *process) do(op string, apply func() error) error { return p.doPartly(op, apply, apply) }

func (p *process) doPartly(op string, apply, partApply func() error) error {
	p.before(op)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return errInjected
	}
	p.step++
	f := p.fault(p.step, op)
	p.history = append(p.history, fmt.Sprintf("%d %s %s: %v", p.step, p.name, op, f))
	switch f {
	case failed:
		return errInjected
	case crashedFirst:
		p.gone = true
		p.crash()
		return errInjected
	case paused:
		p.paused = true
		p.sleeping++
		p.mu.Unlock()
		time.Sleep(pauseTime)
		p.mu.Lock()
		p.sleeping--
		if p.gone {
			return errInjected
		}
	case later:
		if isLasting(op) {
			p.underway.Go(func() {
				time.Sleep(laterTime)
				p.mu.Lock()
				defer p.mu.Unlock()
				p.history = append(p.history, fmt.Sprintf("%s %s: applied now: %v", p.name, op, apply()))
			})
		}
		return errInjected
	}
	if f == partly {
		apply = partApply
	}
	err := apply()
	switch f {
	case applied, partly:
		return errInjected
	case crashedAfter:
		p.gone = true
		p.crash()
		return errInjected
	}
	return err
}

// isLasting reports whether a step has an effect that may arrive late.
func isLasting(op string) bool {
	return strings.HasPrefix(op, "insert ") || strings.HasPrefix(op, "swap ") || strings.HasPrefix(op, "dead-lettered ")
}

// deps are the Deps of an Ingester that owns lane 0.
func (p *process) deps() ingest.Deps {
	return ingest.Deps{
		Leases: onlyLane{}, Lanes: source{p}, States: states{p, &p.state}, Tables: tables{p}, Index: tables{p}, DeadLetters: deadLetters{p}, Forgets: forgets{p}, Expiry: expiry{p},
		Audits: audits{p}, Changes: changes{p}, ChangeStates: states{p, &p.applying},
	}
}

type forgets struct{ *process }

func (f forgets) Forgets(context.Context) (all []flow.Forget, err error) {
	return all, f.do("read forgets", func() error {
		all = slices.Clone(f.orders)
		return nil
	})
}

type expiry struct{ *process }

func (e expiry) Line(context.Context) (line string, err error) {
	return line, e.do("read expiry line", func() error { line = e.line; return nil })
}

// expire moves the expiry line to a day and removes the rows stored up to it. Tokens remain, as in
// ClickHouse until it clears their part.
func (w *world) expire(day string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line = day
	w.rows = slices.DeleteFunc(w.rows, func(r row) bool {
		gone := flow.UTCDay(r.storedAt) <= day
		if gone {
			delete(w.table, r.place)
		}
		return gone
	})
}

type noForgets struct{}

func (noForgets) Forgets(context.Context) ([]flow.Forget, error) { return nil, nil }

// forget gives an order as the stream does: the lane states change with it.
func (w *world) forget(order flow.Forget) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.orders = append(w.orders, order)
	w.state.Forget = order.ID
	w.state.Revision++
}

// onlyLane owns lane 0 until its work ends.
type onlyLane struct{}

func (onlyLane) Run(ctx context.Context, work func(context.Context, int) error) error {
	return work(ctx, 0)
}

func (onlyLane) Others() bool { return false }

type source struct{ *process }

func (s source) Open(ctx context.Context, lane int, from uint64) (ingest.Reader, error) {
	var r *reader
	err := s.do("open", func() error {
		if from <= s.purged || from > uint64(len(s.messages))+1 {
			return flow.ErrGap
		}
		r = &reader{process: s.process, identity: s.identity, next: from}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (s source) OpenChanges(ctx context.Context, from uint64) (ingest.Reader, error) {
	var r *reader
	err := s.do("open changes", func() error {
		if from > uint64(len(s.messages))+1 {
			return flow.ErrGap
		}
		r = &reader{process: s.process, identity: s.identity, next: max(from, s.purged+1), changes: true}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

type reader struct {
	*process
	identity string
	next     uint64
	changes  bool // nothing else
}

func (r *reader) StreamID() string { return r.identity }
func (r *reader) Created() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.UnixMilli(r.created)
}
func (r *reader) Close() {}

func (s source) Heads(_ context.Context, _ int, from, to uint64, f func(*flow.Entry) error) error {
	return s.do(fmt.Sprintf("heads %d-%d", from, to), func() error {
		for seq := max(from, s.purged+1); seq <= min(to, uint64(len(s.messages))); seq++ {
			e := clone(s.messages[seq-1])
			if err := f(&e); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s source) Revision(context.Context, string) (revision uint64, err error) {
	err = s.do("read revision", func() error { revision = s.revision; return nil })
	return revision, err
}

func clone(e flow.Entry) flow.Entry {
	e.Body, e.Messages = slices.Clone(e.Body), slices.Clone(e.Messages)
	for i := range e.Messages {
		e.Messages[i].Body = slices.Clone(e.Messages[i].Body)
	}
	return e
}

func (r *reader) Next(ctx context.Context) (flow.Entry, error) {
	for {
		r.mu.Lock()
		for r.changes && r.next <= uint64(len(r.messages)) && !strings.Contains(r.messages[r.next-1].Topic, ".change.") {
			r.next++
		}
		arrived, there := r.arrived, r.next <= uint64(len(r.messages))
		r.mu.Unlock()
		if there {
			var e flow.Entry
			err := r.do("next", func() error {
				e = clone(r.messages[r.next-1])
				r.next++
				return nil
			})
			return e, err
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return flow.Entry{}, ctx.Err()
		}
	}
}

type states struct {
	*process
	at *flow.LaneState
}

func (s states) Read(context.Context, int) (state flow.LaneState, err error) {
	err = s.do("read state", func() error { state = *s.at; return nil })
	return state, err
}

func (s states) CompareAndSwap(_ context.Context, _ int, next flow.LaneState) (flow.LaneState, error) {
	if c := next.Claim; c != nil { // the process does not share stored state
		copied := *c
		copied.Pieces = slices.Clone(c.Pieces)
		next.Claim = &copied
	}
	err := s.do(fmt.Sprintf("swap to done %d claim %v", next.Done, pieces(next)), func() error {
		if next.Revision != s.at.Revision {
			return flow.ErrNotOwner
		}
		if size := len(must(json.Marshal(next.Claim))); size > 256<<10 || next.Claim != nil && len(next.Claim.Pieces) > flow.MaxPieces {
			s.broken = append(s.broken, fmt.Sprintf("a claim of %d bytes and %d pieces", size, len(next.Claim.Pieces)))
		}
		if next.Done < s.at.Done && next.Incarnation() == s.at.Incarnation() {
			s.broken = append(s.broken, "the checkpoint moved back")
		}
		if t := next.Totals; t.Read != t.Sum() {
			s.broken = append(s.broken, fmt.Sprintf("the totals do not add up: %+v", t))
		}
		stored := uint64(0)
		for _, day := range next.StoredDays {
			stored += day.Rows
		}
		if stored != next.Totals.Stored {
			s.broken = append(s.broken, fmt.Sprintf("%d rows stored by day, %d in all", stored, next.Totals.Stored))
		}
		next.Revision++
		*s.at = next
		return nil
	})
	return next, err
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// pieces summarizes a claim: 1-1 0: open 4, waiting 8.
func pieces(s flow.LaneState) string {
	if s.Claim == nil {
		return "none"
	}
	text := fmt.Sprintf("%s %d:", s.Claim, s.Claim.Settled)
	for _, p := range s.Claim.Pieces {
		text += fmt.Sprintf(" %s %d", p.State, p.To)
	}
	return text
}

type deadLetters struct{ *process }

func (s deadLetters) Publish(_ context.Context, d flow.Dead) error {
	return s.do(fmt.Sprintf("dead-lettered %d/%d", d.Message.Seq, d.Index), func() error {
		if s.full {
			return flow.ErrFull
		}
		at := place{d.Message.Seq, d.Index}
		s.dead[at] = d.Code
		s.bodies[at] = string(d.Message.Body)
		of := s.state.IncarnationOf(d.Message.Seq)
		if strings.Contains(d.Message.Topic, ".change.") {
			of = s.applying.IncarnationOf(d.Message.Seq)
		}
		if d.Message.Incarnation != of {
			s.broken = append(s.broken, fmt.Sprintf("a dead letter of incarnation %d, the message is of %d", d.Message.Incarnation, of))
		}
		return nil
	})
}

type changes struct{ *process }

func (s changes) Incarnation(context.Context) (uint64, error) { return s.applied, nil }

func (s changes) Apply(ctx context.Context, messages []flow.Message, claimed func(context.Context) error) error {
	if err := claimed(ctx); err != nil {
		return err
	}
	return s.do(fmt.Sprintf("apply %d changes", len(messages)), func() error {
		for _, m := range messages {
			if string(m.Body) == "never" {
				return &flow.StoreError{Class: flow.ClassPoison, Err: errors.New("not a change")}
			}
			if n := len(s.changes); n > 0 && m.Incarnation <= s.applied && m.Seq <= s.changes[n-1] {
				continue // idempotent: an entry keeps the place of the change in it
			}
			s.changes, s.applied = append(s.changes, m.Seq), max(s.applied, m.Incarnation)
		}
		return nil
	})
}

type audits struct{ *process }

func (s audits) WriteDown(_ context.Context, messages []flow.Message) error {
	err := s.do(fmt.Sprintf("write down %d changes", len(messages)), func() error {
		for _, m := range messages {
			s.written[m.Seq] = true
		}
		return nil
	})
	if errors.Is(err, errInjected) {
		return &flow.StoreError{Class: flow.ClassRetry, Err: err}
	}
	return err
}
