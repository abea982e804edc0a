package ingest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// rows stores the rows that the claim names, and then the rest of the block.
// As long as nothing is refused the claim is all of the block, and rows is one
// insert, or those of all pieces at once.
func (s *session) rows(ctx context.Context, b *block) error {
	if stored, err := s.allAtOnce(ctx, b); stored || err != nil {
		return err
	}
	all := b.columns.Rows()
	for {
		c := *s.position.Claim
		from, to := c.From, c.To
		if to == 0 {
			to = all
		}
		if to > all || from > 0 && from >= to || to > b.end(from) && all > 0 {
			return halt("the claim names the rows %d to %d of a block of %d: it is of another version, or damaged", from, to, all)
		}
		var refused *flow.StoreError
		switch err := s.piece(ctx, b, c, from, to); {
		case errors.As(err, &refused) && refused.Class == flow.ClassPoison:
			if err := s.narrow(ctx, b, from, to, refused); err != nil {
				return err
			}
			// Narrowed. A crash here goes on with the smaller piece. The
			// larger one left nothing behind: narrow has made sure.
		case err != nil && to-from > 1 && s.trials.tooHeavy(time.Now()):
			if err := s.shrink(ctx, b, from, to, err); err != nil {
				return err
			}
		case err != nil:
			return err
		case to == all:
			return nil
		default:
			// Piece stored, or set aside. A crash here repeats it under its
			// own token.
			if err := s.reclaim(ctx, b, to, b.after(from, to, s.bearable), ""); err != nil {
				return err
			}
		}
	}
}

// pieces is how many pieces of the block are inserted at once: several when more is
// waiting, so that the lane goes as fast as several inserts do, and one while it
// keeps up, so that there are few parts to merge.
func (s *session) pieces(b *block) int {
	if !b.full || time.Now().Before(s.sent.again) {
		return 1
	}
	return max(1, min(s.cfg.Together, b.columns.Bytes()/s.cfg.PieceBytes))
}

// allAtOnce inserts all pieces of a block that was just claimed in pieces for that,
// each under its own token, and returns true when all of them are stored. A
// crash here leaves each of them inserted or not; the claim says that of all.
//
// When one fails, its piece and those that are stored are inserted one after the
// other, as after a crash.
func (s *session) allAtOnce(ctx context.Context, b *block) (stored bool, err error) {
	c := *s.position.Claim
	if b.together == 1 || s.repeated {
		return false, nil
	}
	if known, err := s.isRemembered(ctx, c); err != nil || !known {
		return false, err
	}
	claims := b.claims(c)
	errs := make([]error, len(claims))
	start := time.Now()
	s.beat()
	var inserts, beating sync.WaitGroup
	done := make(chan struct{})
	beating.Go(func() { s.beatWhile(s.cfg.InsertTime, done) })
	for i, piece := range claims {
		named := s.named(b, piece)
		named.Timeout = s.cfg.InsertTime
		inserts.Go(func() { errs[i] = s.deps.Warehouse.Insert(ctx, named) })
	}
	inserts.Wait()
	close(done)
	beating.Wait()
	s.beat()

	var running, poison bool
	for i, one := range errs {
		var failed *flow.StoreError
		switch {
		case one == nil:
		case errors.As(one, &failed) && failed.Class == flow.ClassPoison:
			poison = true
		case err == nil:
			err = fmt.Errorf("insert block %s: %w", claims[i].Token, one)
		}
		running = running || one != nil && (failed == nil || failed.Code == 0)
	}
	if err == nil && !poison {
		s.inserted(ctx, b, 0, b.columns.Rows(), time.Since(start))
		return true, nil
	}
	s.repeated = true
	s.sent = sent{whole: wholeToken(c.Token), again: time.Now().Add(togetherAgain)}
	if running { // the warehouse has not said that it is done with it
		s.sent.until = time.Now().Add(s.cfg.InsertTime + insertBeat)
	}
	s.trials = s.sent.trialsOf(c.Token)
	return false, err
}

// piece stores what the claim names, the rows from to to-1, or sets it aside.
func (s *session) piece(ctx context.Context, b *block, c flow.Claim, from, to int) error {
	switch {
	case c.Dead != "":
		return s.setAsideRow(ctx, b, from, c.Dead)
	case from == to:
		return nil
	}
	start := time.Now()
	s.beat()
	known, err := s.isRemembered(ctx, c)
	if err == nil && known {
		err = s.insert(ctx, b, c)
	} else if err == nil {
		err = s.complete(ctx, b, c, from, to)
	}
	s.beat()
	if err != nil {
		return err
	}
	s.inserted(ctx, b, from, to, time.Since(start))
	return nil
}

// inserted counts the rows from to to-1, which are stored.
func (s *session) inserted(ctx context.Context, b *block, from, to int, took time.Duration) {
	s.refusals = 0
	s.recovered()
	s.took.Store(int64(took))
	s.metrics.inserted(ctx, took)
	s.metrics.rows.Add(float64(to - from))
	s.moved.Stored += uint64(to - from)
	s.lastRow = max(s.lastRow, slices.Max(b.columns.StreamSeq[from:to]))
}

// insert inserts what the claim names under its token. When that may have been
// done before it makes sure that it is there.
func (s *session) insert(ctx context.Context, b *block, c flow.Claim) error {
	if err := s.try(ctx, b, c); err != nil {
		return fmt.Errorf("insert block %s: %w", c.Token, err)
	}
	if !s.repeated {
		return nil
	}
	// A ClickHouse server that is killed between remembering a token and
	// storing its rows drops the repeat, and says that all is well. It does so
	// for each month by itself.
	missing, _, err := s.months(ctx, b, c)
	if err == nil && len(missing) > 0 {
		err = halt("the table takes block %s for stored, but has none of its rows of %v: make it forget its tokens (docs/reliability.md says how)", c.Token, missing)
	}
	return err
}

func (s *session) named(b *block, c flow.Claim) record.Block {
	return record.Block{Lane: s.number, Claim: c, Columns: &b.columns}
}

const (
	// heavyTries is how often the same rows are inserted again that were too much
	// for the warehouse, before fewer are claimed: it may be busy for a moment.
	heavyTries = 3

	// longestInsert is the longest attempt, as so many times the first one.
	longestInsert = 10

	// insertBeat is how often the heart beats while an insert is in flight, which
	// ends by itself.
	insertBeat = 15 * time.Second
)

// try inserts what the claim names. One that took too long gets more time.
func (s *session) try(ctx context.Context, b *block, c flow.Claim) error {
	if s.trials.token != c.Token {
		// Another instance has claimed it, and may be at it.
		s.trials = trials{token: c.Token, loose: time.Now().Add(longestInsert*s.cfg.InsertTime + insertBeat)}
	}
	named := s.named(b, c)
	named.Timeout = s.cfg.InsertTime * time.Duration(min(longestInsert, 1<<min(s.trials.slow, longestInsert)))
	var beating sync.WaitGroup
	done := make(chan struct{})
	beating.Go(func() { s.beatWhile(named.Timeout, done) })
	err := s.deps.Warehouse.Insert(ctx, named)
	close(done)
	beating.Wait()

	var failed *flow.StoreError
	if !errors.As(err, &failed) {
		return err
	}
	if failed.Code == 0 { // the warehouse has not said that it is done with it
		s.trials.loose = time.Now().Add(named.Timeout + insertBeat)
	}
	if failed.Slow {
		s.trials.slow++
	}
	if failed.Slow || failed.Large {
		s.trials.heavy++
	}
	return err
}

// beatWhile beats while an insert may take its time, and no longer: one that does
// not end then hangs.
func (s *session) beatWhile(timeout time.Duration, done <-chan struct{}) {
	tick := time.NewTicker(insertBeat)
	defer tick.Stop()
	for left := timeout - insertBeat; left > 0; left -= insertBeat {
		select {
		case <-tick.C:
			s.beat()
		case <-done:
			return
		}
	}
}

// safeParts is how many parts may have been inserted after a claim for its
// token still to be taken as remembered: half of the least window of tokens
// that the warehouse takes for enough. The other half is for who inserts while
// this is asked, and for a process that stood still between asking and
// inserting.
const safeParts = 50_000

// rememberedFor is how long what was learned about the age of a token is good.
const rememberedFor = time.Minute

// isRemembered says whether the tables still know the token of the claim, in
// case it was inserted. A claim that was just made is not asked for.
func (s *session) isRemembered(ctx context.Context, c flow.Claim) (bool, error) {
	now := time.Now()
	// By both clocks: one of them stands still while the machine sleeps.
	age, wall := now.Sub(s.remembered), now.UnixMilli()-s.remembered.UnixMilli()
	if age < rememberedFor && 0 <= wall && wall < rememberedFor.Milliseconds() {
		return true, nil
	}
	parts, err := s.deps.Warehouse.PartsSince(ctx, time.UnixMilli(c.At))
	if err != nil {
		return false, fmt.Errorf("look how old claim %s is: %w", c.Token, err)
	}
	if parts > safeParts {
		return false, nil
	}
	s.remembered = now
	return true, nil
}

// months looks which months of what the claim names are in the table, and which
// are not. A month is inserted as one part, so that all of it is there or
// nothing.
func (s *session) months(ctx context.Context, b *block, c flow.Claim) (missing, there []int, err error) {
	from, to := c.From, c.To
	if to == 0 {
		to = b.columns.Rows()
	}
	stored, err := s.deps.Warehouse.Stored(ctx, s.named(b, c))
	if err != nil {
		return nil, nil, fmt.Errorf("look for the rows of block %s: %w", c.Token, err)
	}
	rows := b.columns.Months(from, to)
	for _, month := range slices.Sorted(maps.Keys(rows)) {
		switch n := stored[month]; n {
		case rows[month]:
			there = append(there, month)
		case 0:
			missing = append(missing, month)
		default:
			return nil, nil, halt("the table has %d of the %d rows of block %s of month %d: rows were removed from it, or added: restore them", n, rows[month], c.Token, month)
		}
	}
	return missing, there, nil
}
