package ingest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"sluice/pkg/record"
)

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
func (s *session) isRemembered(ctx context.Context, c record.Claim) (bool, error) {
	now := time.Now()
	// By both clocks: one of them stands still while the machine sleeps.
	age, wall := now.Sub(s.remembered), now.UnixMilli()-s.remembered.UnixMilli()
	if age < rememberedFor && 0 <= wall && wall < rememberedFor.Milliseconds() {
		return true, nil
	}
	parts, err := s.parts.Warehouse.PartsSince(ctx, time.UnixMilli(c.At))
	if err != nil {
		return false, fmt.Errorf("look how old claim %s is: %w", c.Token, err)
	}
	if parts > safeParts {
		return false, nil
	}
	s.remembered = now
	return true, nil
}

// complete stores what the claim names by looking instead of by its token,
// which the tables may have forgotten: months that are missing are inserted,
// months that are there are not. What the materialized views have heard of it
// nobody knows: folds, which may hear a thing twice, are told again, and the
// days are named for the counters to be counted again.
//
// A crash in between repeats it, and finds the months that were inserted. The
// token goes with the insert all the same: somebody who stood still may be at
// the same insert.
func (s *session) complete(ctx context.Context, b *block, c record.Claim, from, to int) error {
	missing, there, err := s.months(ctx, b, c)
	if err != nil {
		return err
	}
	s.log.WarnContext(ctx, "completing a claim by looking: its token may be forgotten", "token", c.Token, "missing", missing, "there", there)
	s.repeated = true
	if len(there) == 0 {
		err = s.insert(ctx, b, c)
	} else if len(missing) > 0 {
		part := c
		part.From, part.To = from, from+b.gather(from, to, missing)
		err = s.insert(ctx, b, part)
	}
	if err != nil {
		return err
	}
	if err := s.parts.Warehouse.Refold(ctx, s.named(b, c)); err != nil {
		return fmt.Errorf("tell the folds about block %s again: %w", c.Token, err)
	}
	s.doubt(b, from, to)
	return nil
}

// doubt names the days of the rows from to to-1 for a recount.
func (s *session) doubt(b *block, from, to int) {
	days := map[int64]bool{}
	for _, ms := range b.columns.TS[from:to] {
		days[record.Day(ms)] = true
	}
	for _, day := range slices.Sorted(maps.Keys(days)) {
		s.doubted = append(s.doubted, time.Unix(day*24*60*60, 0).UTC().Format(time.DateOnly))
	}
}

// months looks which months of what the claim names are in the table, and which
// are not. A month is inserted as one part, so that all of it is there or
// nothing.
func (s *session) months(ctx context.Context, b *block, c record.Claim) (missing, there []int, err error) {
	from, to := c.From, c.To
	if to == 0 {
		to = b.columns.Rows()
	}
	stored, err := s.parts.Warehouse.Stored(ctx, s.named(b, c))
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
