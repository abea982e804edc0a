// Package rebuild makes the tables again from what the lanes still hold, in a
// database of their own, and compares them with those in use.
//
// It goes through a lane as the ingester does: read, decode, claim, insert
// under a token made of the messages. The claims are in the new database, so
// that it can be interrupted, repeated, and continued later with what was
// accepted since; dropping the database forgets all of it.
package rebuild

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"sluice/pkg/record"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// Config says how.
type Config struct {
	Rows     int                      // close a block at so many records; default 50 000
	Bytes    int                      // or at so many bytes of memory; default 32 MiB
	Limit    int                      // most records to name that differ; default 20
	Progress func(done, total uint64) // called after every block, with messages; default none
}

func (c Config) withDefaults() Config {
	if c.Rows == 0 {
		c.Rows = 50_000
	}
	if c.Bytes == 0 {
		c.Bytes = 32 << 20
	}
	if c.Limit == 0 {
		c.Limit = 20
	}
	if c.Progress == nil {
		c.Progress = func(uint64, uint64) {}
	}
	return c
}

// rebuild is one run.
type rebuild struct {
	cfg    Config
	stream *stream.Stream
	into   *warehouse.Shadow
	aside  map[place]map[int]bool // indexes of what was set aside, by message
	done   uint64                 // messages
	total  uint64
}

// place is a message.
type place struct {
	lane int
	seq  uint64
}

// Run rebuilds what the lanes hold up to where they are stored, and compares.
func Run(ctx context.Context, s *stream.Stream, into *warehouse.Shadow, cfg Config) (*Report, error) {
	r := &rebuild{cfg: cfg.withDefaults(), stream: s, into: into, aside: map[place]map[int]bool{}}
	if err := into.Prepare(ctx); err != nil {
		return nil, err
	}
	lanes, err := r.plan(ctx)
	if err != nil {
		return nil, err
	}
	// After the positions: all that was set aside up to there is known.
	for f, err := range stream.NewDeadLetters(s).Fates(ctx) {
		if err != nil {
			return nil, err
		}
		at := place{f.Lane, f.Seq}
		if r.aside[at] == nil {
			r.aside[at] = map[int]bool{}
		}
		r.aside[at][f.Index] = true
	}
	for _, l := range lanes {
		if err := l.replay(ctx); err != nil {
			return nil, fmt.Errorf("rebuild lane %d: %w", l.info.Number, err)
		}
	}
	return r.compare(ctx, lanes)
}

// lane is one lane and what is to be made of it.
type lane struct {
	*rebuild
	info        stream.Lane
	first       uint64       // first message that is in the shadow, or will be
	next        uint64       // first message still to insert
	last        uint64       // last one
	claim       record.Claim // a block that may be inserted or not; zero when none
	known       uint64       // live rows of messages up to here may be of an earlier life of the lane
	incarnation uint64
}

// plan finds out what to insert.
func (r *rebuild) plan(ctx context.Context) ([]*lane, error) {
	if err := r.stream.Refresh(ctx); err != nil {
		return nil, err
	}
	positions := stream.NewPositions(r.stream)
	var all []*lane
	for _, info := range r.stream.Lanes() {
		pos, err := positions.Read(ctx, info.Number)
		if err != nil {
			return nil, err
		}
		if pos.Stream != "" && pos.Stream != info.Identity() {
			return nil, fmt.Errorf("lane %d was deleted and made again: nothing of it is stored", info.Number)
		}
		l := &lane{rebuild: r, info: info, first: info.First, next: info.First, last: pos.Done, known: pos.Known, incarnation: pos.Incarnation}
		begun, claim, err := r.into.Claims(ctx, info.Number)
		if err != nil {
			return nil, err
		}
		if claim.Last > 0 {
			l.first, l.next, l.claim = begun.First, claim.First, claim
			l.last = max(l.last, claim.Last)
			if !strings.HasPrefix(claim.Token, info.Identity()+":") || l.next < info.First {
				return nil, fmt.Errorf("lane %d does not hold message %d any more, at which %s ends: drop that database and begin again", info.Number, l.next, r.into.Database())
			}
		}
		if l.last >= l.next {
			r.total += l.last - l.next + 1
		}
		all = append(all, l)
	}
	return all, nil
}

// replay inserts the messages of the lane, block by block.
func (l *lane) replay(ctx context.Context) error {
	if l.next > l.last {
		return nil
	}
	cursor, err := stream.NewReader(l.stream, 0).Open(ctx, l.info.Number, l.next)
	if err != nil {
		return err
	}
	defer cursor.Close()
	b := &block{rebuild: l.rebuild, hash: xxh3.New()}
	for l.next <= l.last {
		b.reset()
		for end := l.blockEnd(); b.last < end && !b.full(l.claim); {
			m, err := cursor.Next(ctx)
			if err != nil {
				return err
			}
			m.Incarnation = l.incarnation
			if err := b.add(&m); err != nil {
				return err
			}
		}
		if err := l.insert(ctx, b); err != nil {
			return err
		}
		l.next = b.last + 1
		l.done += b.last - b.first + 1
		l.cfg.Progress(l.done, l.total)
	}
	return nil
}

// blockEnd is the last message the next block may have.
func (l *lane) blockEnd() uint64 {
	if l.claim.Last != 0 {
		return l.claim.Last
	}
	return l.last
}

// insert claims a block and inserts it.
func (l *lane) insert(ctx context.Context, b *block) error {
	claim := record.Claim{First: b.first, Last: b.last, Token: b.token(l.info.Identity())}
	if l.claim.Last != 0 {
		if claim != l.claim {
			return fmt.Errorf("messages %s are not those that were inserted: drop database %s and begin again", claim, l.into.Database())
		}
		l.claim = record.Claim{}
	} else if err := l.into.Claim(ctx, l.info.Number, claim); err != nil {
		return err
	}
	// Claimed. A crash here makes the next run insert the same again; the token
	// makes that harmless.
	const tries = 5
	for try := 1; ; try++ {
		err := l.into.Insert(ctx, record.Block{Lane: l.info.Number, Claim: claim, Columns: &b.columns})
		var refused *record.StoreError
		if err == nil || try == tries || !errors.As(err, &refused) || refused.Class != record.ClassRetry {
			return err
		}
		select {
		case <-time.After(time.Duration(try) * time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// block is a run of messages.
type block struct {
	*rebuild
	first, last uint64
	columns     record.Columns
	scratch     record.Columns
	hash        *xxh3.Hasher
}

func (b *block) reset() {
	b.first, b.last = 0, 0
	b.columns.Reset()
	b.hash.Reset()
}

// full tells whether the block ends. One that was claimed has the end it had.
func (b *block) full(claim record.Claim) bool {
	return claim.Last == 0 && (b.columns.Rows() >= b.cfg.Rows || b.columns.Bytes() >= b.cfg.Bytes)
}

func (b *block) token(identity string) string {
	sum := b.hash.Sum128().Bytes()
	return fmt.Sprintf("%s:%d-%d:%s", identity, b.first, b.last, hex.EncodeToString(sum[:]))
}

// add adds what of a message is stored: neither what can not be decoded, nor
// what was set aside for another reason.
func (b *block) add(m *record.Message) error {
	if b.first == 0 {
		b.first = m.Seq
	}
	b.last = m.Seq
	aside := b.aside[place{m.Lane, m.Seq}]
	_, _ = b.hash.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(m.Body))))
	_, _ = b.hash.Write(m.Body)
	if m.Topic != stream.RecordTopic(m.Lane) || aside[-1] {
		return nil
	}
	b.scratch.Reset()
	bad, err := b.scratch.AppendGood(m)
	if err != nil {
		return nil // set aside as a whole
	}
	skip := map[int]bool{}
	for _, one := range bad {
		skip[one.Index] = true
	}
	return b.columns.AppendExcept(m, func(index int) bool { return skip[index] || aside[index] })
}
