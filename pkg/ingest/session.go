package ingest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/pkg/record"
)

// session is one run of the loop of a lane, from its position to the first
// failure. Everything it has to know is in the position; nothing outlives it.
type session struct {
	*lane
	stream   string              // Identity of the stream
	messages chan record.Message // from read to fill
	blocks   chan *block         // from fill to store; without a buffer: a block grows as long as store is busy
	free     chan *block         // and back

	handedOver time.Time    // when fill last gave a block away; owned by fill
	turned     atomic.Int64 // when the loop of fill last turned, unix ns

	position record.Position // as it was written last; owned by store
	stored   bool            // the claim of position is stored and may be recorded as done; owned by store
	lastRow  uint64          // the last message that left a row; owned by store
	repeated bool            // the claim was there before this session, and perhaps inserted; owned by store
}

// session goes on from position until something fails or ctx ends.
func (l *lane) session(ctx context.Context, position record.Position) error {
	from := position.Done + 1
	if position.Claim != nil && position.Claim.First != from {
		return halt("the position is damaged: claim %s does not follow message %d", position.Claim, position.Done)
	}
	reader, err := l.parts.Source.Open(ctx, l.number, from)
	if err != nil {
		return fmt.Errorf("open the lane at message %d: %w", from, err)
	}
	defer reader.Close()
	stream := reader.Identity()
	if position.Stream != "" && position.Stream != stream {
		return halt("the stream was recreated: messages up to %d were stored from %s, now there is %s; what was not stored of it is lost; sluice lanes reset says where the lane goes on", position.Done, position.Stream, stream)
	}
	position.Stream = stream
	if position.Known, err = l.compare(ctx, position); err != nil {
		return err
	}

	s := &session{
		lane: l, stream: stream, position: position, lastRow: position.Stored,
		messages: make(chan record.Message, readAhead),
		blocks:   make(chan *block),
		free:     make(chan *block, len(l.memory)),
	}
	for _, b := range l.memory {
		s.free <- b
	}
	l.metrics.lag.again()
	g, run := errgroup.WithContext(ctx)
	g.Go(func() error { return s.read(run, reader, from) })
	g.Go(func() error { return s.fill(run, position.Claim) })
	g.Go(func() error { return s.store(run) })
	return g.Wait()
}

// compareTime bounds the look for the end of the table, which reads a column
// of all of it.
const compareTime = 10 * time.Second

// compare looks where the table ends, once per loop and when the position is
// not the one that this loop wrote last.
//
// A table that does not reach as far as the position was truncated, or restored
// from a backup: that is reported, and going on loses nothing more. One that
// reaches further than anything that was ever claimed belongs to a position and
// a stream that are gone, as when NATS was restored from a backup: going on
// would give new messages the numbers of old ones, so the lane halts until an
// operator has said that the rows up to there, which it returns, are known.
func (l *lane) compare(ctx context.Context, p record.Position) (known uint64, err error) {
	if l.compared {
		return p.Known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, compareTime)
	defer cancel()
	last, err := l.parts.Warehouse.LastSeq(ctx, l.number)
	var away *record.StoreError
	if errors.As(err, &away) && away.Class == record.ClassRetry && ctx.Err() == nil {
		return 0, fmt.Errorf("compare the end of the table with the position: %w", err)
	}
	if err != nil {
		l.log.Warn("the end of the table was not compared with the position", "error", err)
		return p.Known, nil
	}
	if p.Known == record.KnownAll {
		p.Known = last
	}
	claimed := p.Done
	if p.Claim != nil {
		claimed = p.Claim.Last
	}
	if last > max(claimed, p.Known) {
		return 0, halt("the table has records of messages up to %d, but the lane has never been further than %d: NATS holds an earlier state, restored or new; what it had accepted since and not stored is lost; when that is settled, sluice lanes reset says where the lane goes on", last, claimed)
	}
	l.compared = true
	l.metrics.missing.Set(0)
	if last < p.Stored {
		l.metrics.missing.Set(float64(p.Stored - last))
		l.log.Error("the table has lost records that were stored: restore it, or rebuild it from the stream",
			"last_stored", p.Stored, "last_in_table", last)
	}
	return p.Known, nil
}
