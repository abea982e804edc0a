package ingest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/pkg/flow"
)

// session is one run of the loop of a lane, from its position to the first
// failure. Everything it has to know is in the position; nothing outlives it.
type session struct {
	*lane
	life     life            // of the lane
	stream   string          // Identity of the stream
	messages chan flow.Entry // from read to fill
	blocks   chan *block     // from fill to store; without a buffer: a block grows as long as store is busy
	free     chan *block     // and back

	handedOver time.Time    // when fill last gave a block away; owned by fill
	turned     atomic.Int64 // when the loop of fill last turned, unix ns
	took       atomic.Int64 // how long store last inserted, ns; 0 before it has

	position   flow.Position // as it was written last; owned by store
	stored     bool          // the claim of position is stored and may be recorded as done; owned by store
	voidBehind uint64        // what the clock says is void, behind the claim; owned by store
	lastRow    uint64        // the last message that left a row; owned by store
	repeated   bool          // what is claimed may have been inserted already; owned by store

	// What was made of the claim of position, and moves with it; owned by store.
	moved      flow.Totals
	doubted    []string  // days whose counters are in doubt
	remembered time.Time // when the token of the claim was known to be remembered; zero when it is not known
}

// session goes on from position until something fails or ctx ends.
func (l *lane) session(ctx context.Context, position flow.Position) error {
	from := position.Done + 1
	if position.Claim != nil && position.Claim.First != from {
		return halt("the position is damaged: claim %s does not follow message %d", position.Claim, position.Done)
	}
	reader, err := l.deps.Lanes.Open(ctx, l.number, from)
	if err != nil {
		return fmt.Errorf("open the lane at message %d: %w", from, err)
	}
	defer reader.Close()
	stream := reader.Identity()
	if position.Stream != "" && position.Stream != stream {
		return halt("the stream was recreated: messages up to %d were stored from %s, now there is %s; what was not stored of it is lost; sluice lanes reset says where the lane goes on", position.Done, position.Stream, stream)
	}
	position.Stream = stream
	chosen := position.Incarnation
	if chosen == 0 || position.Done == position.Base && position.Claim == nil {
		if position.Incarnation, err = l.begin(ctx, chosen, reader.Created()); err != nil {
			return err
		}
	}
	if err := l.compare(ctx, position); err != nil {
		return err
	}
	if err := l.requests.Recall(ctx, position, l.heads, l.beat); err != nil {
		return err
	}

	l.known.ForgetAll()
	s := &session{
		lane: l, stream: stream, position: position, lastRow: position.Stored,
		life:     life{l.number, position.Incarnation},
		messages: make(chan flow.Entry, readAhead),
		blocks:   make(chan *block),
		free:     make(chan *block, len(l.memory)),
	}
	for _, b := range l.memory {
		s.free <- b
	}
	if position.Incarnation != chosen { // readers of what changes made ask the position for the incarnation
		if err := s.swap(ctx, position); err != nil {
			return err
		}
	}
	l.metrics.lag.again()
	g, run := errgroup.WithContext(ctx)
	g.Go(func() error { return s.read(run, reader, from) })
	g.Go(func() error { return s.fill(run, position.Claim) })
	g.Go(func() error { return s.store(run) })
	return g.Wait()
}

// readAhead is how many messages wait to be decoded, so that reading and
// decoding overlap.
const readAhead = 4

// read hands on the messages of the lane, and makes sure that none is missing.
func (s *session) read(ctx context.Context, reader Reader, from uint64) error {
	for want := from; ; want++ {
		e, err := reader.Next(ctx)
		if err != nil {
			return fmt.Errorf("read the lane: %w", err)
		}
		if e.Seq != want {
			return fmt.Errorf("read the lane: got message %d where %d comes next: %w", e.Seq, want, flow.ErrGap)
		}
		s.metrics.messages.Inc()
		select {
		case s.messages <- e:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fill decodes messages into blocks and hands them to store, which takes one
// only when it has nothing else to do. The claim, if there is one, is the
// first block, whatever its size.
func (s *session) fill(ctx context.Context, claim *flow.Claim) error {
	next, err := flow.Entry{}, error(nil) // the message that did not fit into the block before; Seq 0 when there is none
	for {
		var b *block
		select {
		case b = <-s.free:
		case <-ctx.Done():
			return ctx.Err()
		}
		b.reset(s.life)
		b.shrink(2 * s.maxBytes()) // growing leaves up to as much room again
		if claim != nil {
			err = s.refill(ctx, b, *claim)
			claim = nil
		} else {
			next, err = s.fillNew(ctx, b, next)
		}
		if err != nil {
			return err
		}
	}
}

// refill makes the block that was claimed again.
func (s *session) refill(ctx context.Context, b *block, claim flow.Claim) error {
	void, err := flow.ParseRuns(claim.Void)
	if err != nil {
		return halt("the position is damaged: claim %s: %w", claim, err)
	}
	for b.last < claim.Last {
		select {
		case e := <-s.messages:
			at := int(e.Seq - claim.First)
			s.add(b, e, func() bool {
				return slices.ContainsFunc(void, func(r flow.Run) bool { return r.From <= at && at < r.To })
			})
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case s.blocks <- b:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fillNew fills b, beginning with next, until it is handed over. It returns
// the first message of the block after it, if that was read already.
func (s *session) fillNew(ctx context.Context, b *block, next flow.Entry) (flow.Entry, error) {
	cfg := s.cfg
	tick := time.NewTimer(cfg.MaxAge)
	defer tick.Stop()
	for {
		s.turned.Store(time.Now().UnixNano())
		if next.Seq == 0 { // what has arrived goes in before the block is offered
			select {
			case next = <-s.messages:
			default:
			}
		}
		full := b.bytes() >= s.maxBytes() || b.columns.Rows() >= cfg.MaxRows
		if next.Seq != 0 && !full && (b.empty() || b.columns.Rows()+next.Records() <= cfg.MaxRows) {
			s.add(b, next, func() bool { return s.requests.IsVoid(&next) })
			next = flow.Entry{}
			if time.Since(b.born) < cfg.MaxAge {
				continue
			}
		}

		var in <-chan flow.Entry
		var out chan<- *block
		full = full || next.Seq != 0
		b.full = full
		wait := time.Until(s.handedOver.Add(s.pause(b.columns.Rows())))
		switch {
		case b.empty():
			in, wait = s.messages, idleTick
		case full, wait <= 0, time.Since(b.born) >= cfg.MaxAge:
			out, wait = s.blocks, time.Hour
		}
		if !full {
			in = s.messages
		}
		tick.Reset(wait)
		select {
		case next = <-in:
		case out <- b:
			s.handedOver = time.Now()
			return next, nil
		case <-tick.C:
		case <-ctx.Done():
			return next, ctx.Err()
		}
	}
}

// maxBytes is where a block is full. Lanes that are worked on at once share the
// memory.
func (l *lane) maxBytes() int {
	if l.cfg.MaxBytes > 0 {
		return l.cfg.MaxBytes
	}
	return max(l.share(l.cfg.SharedBytes), leastBytes)
}

// share is what a lane has of the bytes that all lanes of this process have.
func (l *lane) share(bytes int) int { return bytes / int(max(1, l.peers.Load())) }

// leastBytes is a block worth inserting, however many lanes share the memory.
const leastBytes = 1 << 20

// add adds a message to a block; isVoid says whether it counts.
func (s *session) add(b *block, e flow.Entry, isVoid func() bool) {
	if b.empty() {
		b.born = time.Now()
		s.metrics.lag.begin(e.Messages[0].Received)
	}
	b.clock = s.requests.Tick(&e)
	b.add(&e, isVoid())
	if s.cfg.Tracer != nil {
		b.trace(&e)
	}
}

// pause is the least time between a block and the next one, as long as that has no
// more than these rows. An insert has its price, however few rows it has: a small one may
// take a quarter of the time, and waits otherwise. Lanes that are worked on at once share
// what one would make of parts. All of this is within MaxAge.
func (s *session) pause(rows int) time.Duration {
	least := s.cfg.MinPause
	if rows < fewRows {
		least = max(least, 4*time.Duration(s.took.Load()))
	}
	return min(least*time.Duration(max(1, s.peers.Load())), max(s.cfg.MinPause, s.cfg.MaxAge))
}

// fewRows cost ClickHouse less than what an insert of none would, with all views.
const fewRows = 10_000

// begin makes a number for a new life of the lane, before anything of it is stored:
// above that of every row, so that nothing of another life is ever taken for
// something of this; and above the time at which its stream was made. A reset has
// chosen one already, and may not have known of all rows.
//
// So when there is no position, rows of a life that is above that time are of
// this very stream: it was read before, and the position is lost. What has no
// identity of its own would be stored twice, so the lane halts.
func (l *lane) begin(ctx context.Context, chosen uint64, created time.Time) (uint64, error) {
	made := uint64(max(0, created.UnixMilli()))
	last, seq, err := l.deps.Warehouse.LastLife(ctx, l.number)
	if err != nil {
		return 0, fmt.Errorf("look for earlier lives of the lane: %w", err)
	}
	if chosen > 0 {
		return max(chosen, last+1), nil
	}
	if last > made {
		return 0, halt("the position of the lane is gone, but records of its stream are stored up to message %d: the bucket of positions was lost; restore it, or let the lane go on behind what is stored, and verify: sluice lanes reset --lane %d --done %[1]d --yes (--done 0 if the stream was made again, too)", seq, l.number)
	}
	return max(uint64(time.Now().UnixMilli()), last+1, made+1), nil
}

// compare looks where the table ends, once per loop and when the position is
// not the one that this loop wrote last.
//
// A table that does not reach as far as the position was truncated, or restored
// from a backup: that is reported, and going on loses nothing more. One that
// reaches further than anything that was ever claimed belongs to a position and
// a stream that are gone, as when NATS was restored from a backup: going on
// would give new messages the places of old ones, so the lane halts until an
// operator has said where it goes on, in another life.
func (l *lane) compare(ctx context.Context, p flow.Position) error {
	if l.compared {
		return nil
	}
	last, err := l.deps.Warehouse.LastSeq(ctx, l.number, p.Incarnation)
	if err != nil {
		return fmt.Errorf("compare the end of the table with the position: %w", err)
	}
	claimed := p.Done
	if p.Claim != nil {
		claimed = p.Claim.Last
	}
	if _, err := l.marks(ctx, p, nil); err != nil {
		return err
	}
	if last > claimed {
		return halt("the table has records of messages up to %d, but the lane has never been further than %d: NATS holds an earlier state, restored or new; what it had accepted since and not stored is lost; when that is settled, sluice lanes reset says where the lane goes on", last, claimed)
	}
	l.compared = true
	l.metrics.missing.Set(0)
	if last < p.Stored {
		l.metrics.missing.Set(float64(p.Stored - last))
		l.log.Error("the table has lost records that were stored: restore it, or rebuild it from the stream",
			"last_stored", p.Stored, "last_in_table", last)
	}
	return nil
}

// marks asks how far days reach in the warehouse, and makes sure that the
// answer can be trusted: what it is read from must have had all rows that were
// stored of the lane.
func (l *lane) marks(ctx context.Context, p flow.Position, days []flow.SourceDay) (flow.Marks, error) {
	marks, err := l.deps.Warehouse.Marks(ctx, l.number, p.Incarnation, days)
	if err != nil {
		return marks, fmt.Errorf("look how far the sources reach: %w", err)
	}
	if marks.Rows+l.lost >= p.Totals.Stored {
		return marks, nil
	}
	// Either flow.sources alone has lost something: then records that are
	// stored would be taken for new. Or flow.records has lost the same, as when
	// all of ClickHouse was restored from a backup: then they are new.
	lacking, err := l.deps.Warehouse.Lacking(ctx, l.number, p.Incarnation)
	if err != nil {
		return marks, fmt.Errorf("compare flow.sources with flow.records: %w", err)
	}
	if len(lacking) > 0 {
		return marks, halt("flow.sources has lost what it knew: it lacks records of %d days, of source %q first, so that records which are sent again would be stored twice; fill it again from flow.records (docs/reliability.md says how)", len(lacking), lacking[0].Source)
	}
	l.lost = p.Totals.Stored - marks.Rows
	l.log.Error("the tables have lost records that were stored: restore them, or rebuild them from the stream", "stored", p.Totals.Stored, "in_tables", marks.Rows)
	return marks, nil
}
