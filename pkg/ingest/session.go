package ingest

import (
	"context"
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
		return halt("the stream was recreated: messages up to %d were stored from %s, now there is %s", position.Done, position.Stream, stream)
	}
	position.Stream = stream
	l.compare(ctx, position)

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

// compare reports, once per loop, a table that does not reach as far as the
// position: it was truncated, or restored from a backup. Nothing here can
// mend that, and going on loses nothing more.
func (l *lane) compare(ctx context.Context, p record.Position) {
	if l.compared || p.Stored == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, compareTime)
	defer cancel()
	last, err := l.parts.Warehouse.LastSeq(ctx, l.number)
	if err != nil {
		l.log.Warn("the end of the table was not compared with the position", "error", err)
		return
	}
	l.compared = true
	l.metrics.missing.Set(0)
	if last < p.Stored {
		l.metrics.missing.Set(float64(p.Stored - last))
		l.log.Error("the table has lost records that were stored: restore it, or rebuild it from the stream",
			"last_stored", p.Stored, "last_in_table", last)
	}
}
