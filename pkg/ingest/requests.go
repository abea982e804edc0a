package ingest

import (
	"context"
	"fmt"

	"sluice/pkg/record"
)

// request is what an entry holds of a request that the window is to know: one
// with records that have no identity of their own.
type request struct {
	requestID
	seq   uint64
	reach uint64 // the first message within the window before it
	needs uint64 // the first message that it takes to judge whether its entry is void
	index int    // of its first record in its entry
	row   int    // the rows of its block that are its records
	rows  int
}

// requestID is what makes two requests the same one, and which of its records
// these are.
type requestID struct {
	id, hash string
	from, to int // of the records of the request that go to the lane
}

// toKnow says whether the window has to know a request. What is no entry of
// requests has none.
func toKnow(e *record.Entry, m *record.Message) bool { return len(e.Table) > 0 && !m.Identified }

func idOf(m *record.Message) requestID { return requestID{m.ID, m.Hash, m.From, m.From + m.Records} }

// recall makes clock and window know what a position counts on, unless a session
// before this one has left them so.
func (l *lane) recall(ctx context.Context, p record.Position) error {
	if l.recalled == p.Stream && l.recalledLife == p.Incarnation && l.clock.knows(p.Done+1) {
		return nil
	}
	l.recalled = ""
	l.clock.begin(p.Void)
	l.window.reset(p.Done)
	clear(l.looked)
	n, first := 0, max(p.Window, 1)
	heads := l.parts.Source.Heads
	if first > p.Done {
		heads = func(context.Context, int, uint64, uint64, func(*record.Entry) error) error { return nil }
	}
	err := heads(ctx, l.number, first, p.Done, func(e *record.Entry) error {
		if n++; n%1000 == 0 {
			l.beat()
		}
		l.clock.tick(e)
		// What was not void needs no message that is gone. What is of an earlier
		// life of the lane, or was given up, may be sent again.
		if e.Seq > p.Base && e.Knew+1 >= l.clock.first && !l.clock.isVoid(e) {
			for i := range e.Messages {
				if m := &e.Messages[i]; toKnow(e, m) {
					l.window.add(fingerprint(m.ID, m.Hash), e.Seq, e.Knew+1)
				}
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read which requests were stored lately: %w", err)
	}
	l.recalled, l.recalledLife = p.Stream, p.Incarnation
	return nil
}

// repeatedRequests returns the rows that have no identity of their own and whose
// request has brought them before, and adds the requests of the block to the
// window.
func (s *session) repeatedRequests(ctx context.Context, b *block) (runs []record.Run, err error) {
	s.window.limit = s.repeatBytes()
	for i := range b.requests {
		r := &b.requests[i]
		fp := fingerprint(r.id, r.hash)
		var before []requestID // the same request, other records of it perhaps
		err := s.window.find(fp, r.reach, r.seq, func(seq uint64) (bool, error) {
			list, err := s.requestsOf(ctx, b, i, seq)
			for _, one := range list {
				if one.id == r.id && one.hash == r.hash {
					before = append(before, one)
				}
			}
			return covered(before, r.from, r.to) == r.to, err
		})
		if err != nil {
			return nil, err
		}
		c := &b.columns
		for row := r.row; len(before) > 0 && row < r.row+r.rows; row++ {
			at := r.from + int(c.StreamIdx[row]) - r.index
			if c.Kind[row] == record.ByPlace && covered(before, at, at+1) > at {
				runs = addRow(runs, row)
			}
		}
		if r.seq > s.window.last {
			s.window.add(fp, r.seq, r.needs)
		}
	}
	s.window.expire(b.reach, b.last, b.now)
	s.metrics.reach.Set(s.window.reach(s.cfg.RepeatWindow).Seconds())
	return runs, nil
}

// covered is up to which record, of those from one to another, all are in the
// list.
func covered(list []requestID, from, to int) int {
	for moved := true; moved && from < to; {
		moved = false
		for _, r := range list {
			if r.from <= from && from < r.to {
				from, moved = r.to, true
			}
		}
	}
	return min(from, to)
}

// lookedAtMost bounds what is remembered of messages that were read again.
const lookedAtMost = 256

// requestsOf returns the requests of a message that the window is to know: of one
// that is stored, or of one of the block, before its request i.
func (s *session) requestsOf(ctx context.Context, b *block, i int, seq uint64) (list []requestID, err error) {
	if seq >= b.first {
		for i--; i >= 0 && b.requests[i].seq >= seq; i-- {
			if b.requests[i].seq == seq {
				list = append(list, b.requests[i].requestID)
			}
		}
		return list, nil
	}
	if list, there := s.looked[seq]; there {
		return list, nil
	}
	s.metrics.readAgain.Inc()
	err = s.parts.Source.Heads(ctx, s.number, seq, seq, func(e *record.Entry) error {
		for i := range e.Messages {
			if m := &e.Messages[i]; toKnow(e, m) {
				list = append(list, idOf(m))
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read message %d again, for a request that may be repeated: %w", seq, err)
	}
	if len(s.looked) >= lookedAtMost {
		clear(s.looked)
	}
	s.looked[seq] = list
	return list, nil
}

// merge merges two lists of runs, which are in order and have no row in common.
func merge(a, b []record.Run) []record.Run {
	if len(a) == 0 || len(b) == 0 {
		return append(a, b...)
	}
	all := make([]record.Run, 0, len(a)+len(b))
	for len(a) > 0 || len(b) > 0 {
		from := &a
		if len(a) == 0 || len(b) > 0 && b[0].From < a[0].From {
			from = &b
		}
		next := (*from)[0]
		*from = (*from)[1:]
		if n := len(all) - 1; n >= 0 && all[n].To == next.From {
			all[n].To = next.To
		} else {
			all = append(all, next)
		}
	}
	return all
}
