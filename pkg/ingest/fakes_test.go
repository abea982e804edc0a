package ingest_test

import (
	"context"
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

// fault is what goes wrong at one step.
type fault int

const (
	none         fault = iota
	failed             // not applied, reported failed
	applied            // applied, reported failed
	partly             // an insert only: the table has it, its view has not; reported failed
	crashedFirst       // the process dies before the step
	crashedAfter       // the process dies after the step, before it hears of it
)

func (f fault) String() string {
	return [...]string{"no fault", "failed", "applied but reported failed", "partly applied", "crashed before", "crashed after"}[f]
}

var errInjected = errors.New("injected")

// place is where a record stands in the stream.
type place struct {
	Seq   uint64
	Index int
}

// world is what outlives a process: the stream, the lane entry, the warehouse,
// the dead letters and the state store.
type world struct {
	mu       sync.Mutex
	identity string
	created  int64         // when the stream was made, ms
	messages []flow.Entry  // message i has sequence i+1
	arrived  chan struct{} // closed when a message comes
	purged   uint64        // messages up to here are gone

	position flow.Position
	applying flow.Position // that of changes

	table, view map[place]int             // how often each record is there
	rows, told  []row                     // of the table, and those its views have heard of
	tokens      map[string]map[string]int // per table and view: the rows stored under each token
	partsSince  uint64                    // inserted since any claim that is not younger than partsAt
	partsAt     time.Time                 // any age when zero
	refuse      func(*record.Columns, int) bool
	dead        map[place]string // code of each dead letter
	bodies      map[place]string // and its bytes
	full        bool             // there is no room for dead letters
	changes     []uint64         // sequences applied, without repeats within a life
	applied     uint64           // greatest incarnation of those
	written     map[uint64]bool  // sequences of changes that are written down

	step    int
	faults  func(step int, op string) fault
	before  func(op string) // of every step; it may take its time
	history []string
	broken  []string // rules that were broken
	insert  func(record.Block) error
}

func newWorld() *world {
	return &world{
		identity: "FLOW_0@1", arrived: make(chan struct{}),
		table: map[place]int{}, view: map[place]int{},
		tokens: map[string]map[string]int{"table": {}, "view": {}},
		dead:   map[place]string{}, bodies: map[place]string{}, written: map[uint64]bool{},
		refuse: func(*record.Columns, int) bool { return false },
		faults: func(int, string) fault { return none },
		before: func(string) {},
		insert: func(record.Block) error { return nil },
	}
}

// publish adds messages to the stream, each by itself.
func (w *world) publish(messages ...flow.Message) {
	for _, m := range messages {
		w.publishEntry(flow.Entry{Topic: m.Topic, Body: m.Body, Messages: []flow.Message{m}})
	}
}

// publishEntry adds one message to the stream.
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

// row is a stored record.
type row struct {
	flow.Identity
	place
	lane        int
	incarnation uint64
}

// process is the world as one process reaches it. After a crash nothing the
// process does has an effect.
type process struct {
	*world
	name  string
	crash context.CancelFunc
	gone  bool
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
	f := p.faults(p.step, op)
	p.history = append(p.history, fmt.Sprintf("%d %s %s: %v", p.step, p.name, op, f))
	switch f {
	case failed:
		return errInjected
	case crashedFirst:
		p.gone = true
		p.crash()
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

// deps are what an Ingester works with that has lane 0.
func (p *process) deps() ingest.Deps {
	return ingest.Deps{
		Leases: onlyLane{}, Lanes: source{p}, Positions: positions{p, &p.position}, Warehouse: tables{p}, DeadLetters: deadLetters{p},
		Audits: audits{p}, Changes: changes{p}, ChangePositions: positions{p, &p.applying},
	}
}

// onlyLane holds lane 0 for ever, and takes work that ends for good.
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

func (r *reader) Identity() string { return r.identity }
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

type positions struct {
	*process
	at *flow.Position
}

func (s positions) Read(context.Context, int) (p flow.Position, err error) {
	err = s.do("read position", func() error { p = *s.at; return nil })
	return p, err
}

func (s positions) Swap(_ context.Context, _ int, next flow.Position) (flow.Position, error) {
	err := s.do(fmt.Sprintf("swap to done %d claim %v", next.Done, next.Claim), func() error {
		if next.Revision != s.at.Revision {
			return flow.ErrNotOwner
		}
		next.Revision++
		*s.at = next
		return nil
	})
	return next, err
}

type tables struct{ *process }

func rowAt(c *record.Columns, i int) row {
	identity := string(c.Identity.Value(i))
	return row{
		flow.Identity{
			Source: string(c.Source.Value(i)), Content: identity, OwnID: string(c.OwnID.Value(i)),
			PartitionID: c.PartitionID[i], Position: c.Position[i], TS: c.TS[i], Key: c.Key[i],
			RecordType: string(c.RecordType.Value(i)), ValueType: string(c.ValueType.Value(i)), Intent: string(c.Intent.Value(i)),
		},
		place{c.StreamSeq[i], int(c.StreamIdx[i])}, int(c.Lane[i]), c.Incarnation[i],
	}
}

// day is the day of its source that a row counts for.
func (r row) day() flow.SourceDay {
	d := flow.SourceDay{Source: r.Source, Partition: r.PartitionID, Day: flow.Day(r.TS)}
	if r.Content != "" {
		d.Partition = 0
	}
	return d
}

// mark is how far the day is known to reach by this row.
func (r row) mark() int64 {
	if r.Content != "" {
		return r.TS
	}
	return r.Position
}

func rowsOf(b record.Block) (from, to int) {
	if b.Claim.To == 0 {
		return 0, b.Columns.Rows()
	}
	return b.Claim.From, b.Claim.To
}

// store puts the rows into one table, unless it knows the token.
func (s tables) store(name string, rows map[place]int, b record.Block) {
	from, to := rowsOf(b)
	if _, known := s.tokens[name][b.Claim.Token]; known {
		return
	}
	s.tokens[name][b.Claim.Token] = to - from
	list := &s.rows
	if name == "view" {
		list = &s.told
	}
	for i := from; i < to; i++ {
		rows[place{b.Columns.StreamSeq[i], int(b.Columns.StreamIdx[i])}]++
		*list = append(*list, rowAt(b.Columns, i))
	}
}

func (s tables) Insert(_ context.Context, b record.Block) error {
	from, to := rowsOf(b)
	if from == to {
		s.broken = append(s.broken, "an insert of no rows")
	}
	check := func() error {
		if n, ok := s.tokens["table"][b.Claim.Token]; ok && n != to-from {
			s.broken = append(s.broken, "token "+b.Claim.Token+" came with other rows")
		}
		for i := from; i < to; i++ {
			if s.refuse(b.Columns, i) {
				return &flow.StoreError{Class: flow.ClassPoison, Code: 469, Err: errors.New("refused")}
			}
		}
		return s.insert(b)
	}
	err := s.doPartly(fmt.Sprintf("insert %s", b.Claim.Token), func() error {
		if err := check(); err != nil {
			return err
		}
		s.store("table", s.table, b)
		s.store("view", s.view, b)
		return nil
	}, func() error {
		if err := check(); err != nil {
			return err
		}
		s.store("table", s.table, b)
		return nil
	})
	if errors.Is(err, errInjected) {
		return &flow.StoreError{Class: flow.ClassRetry, Err: err}
	}
	return err
}

func (s tables) Stored(_ context.Context, b record.Block) (months map[int]uint64, err error) {
	err = s.do("stored", func() error {
		months = map[int]uint64{}
		from, to := rowsOf(b)
		for i := from; i < to; i++ {
			months[flow.Month(b.Columns.TS[i])] += uint64(s.table[place{b.Columns.StreamSeq[i], int(b.Columns.StreamIdx[i])}])
		}
		return nil
	})
	return months, err
}

func (s tables) PartsSince(_ context.Context, then time.Time) (n uint64, err error) {
	err = s.do("parts since", func() error {
		if s.partsAt.IsZero() || !then.After(s.partsAt) {
			n = s.partsSince
		}
		return nil
	})
	return n, err
}

func (s tables) Refold(_ context.Context, b record.Block) error {
	return s.do("refold", func() error {
		from, to := rowsOf(b)
		for i := from; i < to; i++ {
			if at := (place{b.Columns.StreamSeq[i], int(b.Columns.StreamIdx[i])}); s.table[at] > 0 && s.view[at] == 0 {
				s.view[at] = 1
				s.told = append(s.told, rowAt(b.Columns, i))
			}
		}
		return nil
	})
}

// Known returns more than it is asked for, as the real one does.
func (s tables) Known(_ context.Context, c *record.Columns, rows []int, found func(*flow.Identity)) error {
	return s.do(fmt.Sprintf("known of %d", len(rows)), func() error {
		days := map[int64]bool{}
		for _, i := range rows {
			days[flow.Day(c.TS[i])] = true
		}
		for _, r := range s.rows {
			if days[flow.Day(r.TS)] {
				found(&r.Identity)
			}
		}
		return nil
	})
}

func (s tables) Marks(_ context.Context, lane int, incarnation uint64, days []flow.SourceDay) (marks flow.Marks, err error) {
	err = s.do(fmt.Sprintf("marks of %d", len(days)), func() error {
		marks.Last = map[flow.SourceDay]int64{}
		for _, r := range s.told {
			if r.lane == lane && r.incarnation == incarnation {
				marks.Rows++
			}
			if day := r.day(); slices.Contains(days, day) {
				last, there := marks.Last[day]
				if marks.Last[day] = r.mark(); there {
					marks.Last[day] = max(last, r.mark())
				}
			}
		}
		return nil
	})
	return marks, err
}

func (s tables) Lacking(_ context.Context, lane int, incarnation uint64) (days []flow.SourceDay, err error) {
	err = s.do("lacking", func() error {
		for _, r := range s.rows {
			if r.lane == lane && r.incarnation == incarnation && !slices.ContainsFunc(s.told, func(t row) bool { return t.place == r.place }) {
				days = append(days, r.day())
			}
		}
		return nil
	})
	return days, err
}

func (s tables) LastSeq(_ context.Context, lane int, incarnation uint64) (seq uint64, err error) {
	err = s.do("last seq", func() error {
		for _, r := range s.rows {
			if r.lane == lane && r.incarnation == incarnation {
				seq = max(seq, r.Seq)
			}
		}
		return nil
	})
	return seq, err
}

func (s tables) LastLife(_ context.Context, lane int) (last, seq uint64, err error) {
	err = s.do("last life", func() error {
		for _, r := range s.rows {
			if r.lane == lane && r.incarnation > last {
				last, seq = r.incarnation, 0
			}
			if r.lane == lane && r.incarnation == last {
				seq = max(seq, r.Seq)
			}
		}
		return nil
	})
	return last, seq, err
}

type deadLetters struct{ *process }

func (s deadLetters) SetAside(_ context.Context, d flow.Dead) error {
	return s.do(fmt.Sprintf("set aside %d/%d", d.Message.Seq, d.Index), func() error {
		if s.full {
			return flow.ErrFull
		}
		at := place{d.Message.Seq, d.Index}
		s.dead[at] = d.Code
		s.bodies[at] = string(d.Message.Body)
		life := s.position.Incarnation
		if strings.Contains(d.Message.Topic, ".change.") {
			life = s.applying.Incarnation
		}
		if d.Message.Incarnation != life {
			s.broken = append(s.broken, fmt.Sprintf("a dead letter of life %d, the lane is in %d", d.Message.Incarnation, life))
		}
		return nil
	})
}

type changes struct{ *process }

func (s changes) Incarnation(context.Context) (uint64, error) { return s.applied, nil }

func (s changes) Apply(_ context.Context, messages []flow.Message) error {
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
