package verify

import (
	"context"
	"errors"
	"strings"

	"sluice/pkg/record"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

const (
	// runWidth is how many messages are compared by one sum, and read again
	// when it differs.
	runWidth = 64

	// segmentWidth is how many messages are compared by one query, which reads
	// through the whole table.
	segmentWidth = runWidth << 16
)

// errUnknownTopic says that a message is set aside as a whole.
var errUnknownTopic = errors.New("a message of an unknown topic")

// lane accounts for one lane.
type lane struct {
	*verifier
	Lane
	info     stream.Lane
	position record.Position // at which the lane is settled
	claimed  uint64          // last message of the block that is being stored, 0 when none
	minutes  minutes
	digest   *warehouse.Digest
	columns  record.Columns

	segment uint64                   // its first message
	want    map[uint64]warehouse.Sum // of the segment, by run
	rowless rowless                  // without a row of their own, to be looked for elsewhere
	kept    record.Totals            // of the messages that were read and are settled
	gaps    bool                     // messages were purged while the lane was read
}

// account reads the lane from First to Last.
func (l *lane) account(ctx context.Context) error {
	defer l.minutes.into(&l.Lane)
	if l.position.Base > 0 {
		l.note("lane %d was made again or set back at message %d, and an operator said that it goes on after it: what was before is left out", l.Lane.Lane, l.position.Base)
	}
	l.begin(l.First)
	for seq := l.First; seq <= l.Last; {
		next, err := l.read(ctx, seq)
		if err != nil {
			return err
		}
		if next <= l.Last { // stopped by the purger
			if err := l.compare(ctx, min(next-1, l.Settled)); err != nil {
				return err
			}
			if err := l.stream.Refresh(ctx); err != nil {
				return err
			}
			first := l.firstNow()
			if first <= next {
				return record.ErrGap // not the purger: messages are missing from within
			}
			l.note("messages %d to %d of lane %d were purged while it was verified: only the totals account for them", next, first-1, l.Lane.Lane)
			l.gaps = true
			l.begin(first)
			next = first
		}
		seq = next
	}
	if err := l.compare(ctx, l.Settled); err != nil {
		return err
	}
	if err := l.search(ctx); err != nil {
		return err
	}
	return l.before(ctx)
}

func (l *lane) firstNow() uint64 {
	for _, info := range l.stream.Lanes() {
		if info.Number == l.Lane.Lane {
			return info.First
		}
	}
	return 0
}

// begin begins a segment.
func (l *lane) begin(seq uint64) {
	l.segment = seq
	l.want = map[uint64]warehouse.Sum{}
}

// read accounts for messages from seq on, and returns the one after the last
// it could read.
func (l *lane) read(ctx context.Context, seq uint64) (uint64, error) {
	cursor, err := stream.NewReader(l.stream, 0).Open(ctx, l.Lane.Lane, seq)
	if errors.Is(err, record.ErrGap) {
		return seq, nil
	}
	if err != nil {
		return seq, err
	}
	defer cursor.Close()
	for ; seq <= l.Last; seq++ {
		m, err := cursor.Next(ctx)
		if errors.Is(err, record.ErrGap) {
			return seq, nil
		}
		if err != nil {
			return seq, err
		}
		if seq-l.segment == segmentWidth {
			if err := l.compare(ctx, min(seq-1, l.Settled)); err != nil {
				return seq, err
			}
			l.begin(seq)
		}
		l.message(&m)
		if l.verifier.read++; l.verifier.read%512 == 0 {
			l.cfg.Progress(l.verifier.read, l.total)
		}
	}
	return seq, nil
}

// message counts the records of a message by what should have become of them.
func (l *lane) message(m *record.Message) {
	switch m.Topic {
	case stream.RecordTopic(m.Lane):
	case stream.FenceTopic(m.Lane): // a source has left the lane
		return
	default:
		if strings.HasPrefix(m.Topic, stream.ChangePrefix) {
			l.Changes++
			return
		}
	}
	t := l.minutes.at(m.Received)
	if m.Seq > l.Settled {
		n := uint64(max(m.Records, 1))
		t.Accepted += n
		t.Waiting += n
		if m.Seq <= l.claimed {
			l.InDoubt += n
		}
		return
	}
	records := l.decode(m, func(row int) {
		run := (m.Seq - l.segment) / runWidth
		sum := l.want[run]
		sum.Rows++
		sum.Digest += l.digest.Row(&l.columns, row)
		l.want[run] = sum
		t.Stored++
		l.kept.Stored++
	}, func(index, n int, fate string) {
		l.kept.Dead += uint64(n)
		switch fate {
		case stream.FateDead:
			t.Dead += uint64(n)
		case stream.FateReplayed:
			t.Replayed += uint64(n)
		case stream.FateDropped:
			t.Dropped += uint64(n)
		default:
			t.Missing += uint64(n)
			l.find(Finding{Kind: Missing, Lane: m.Lane, Sequence: m.Seq, Index: index, Received: m.Received,
				Detail: "it can not be decoded, and is not among the dead letters"})
		}
	})
	t.Accepted += uint64(records)
	l.kept.Read += uint64(records)
	if m.Records > 0 && records != m.Records {
		l.find(Finding{Kind: Miscounts, Lane: m.Lane, Sequence: m.Seq, Index: -1, Received: m.Received,
			Detail: "the header of the message counts other records than it holds"})
	}
}

// decode splits a message as the ingester does, into what must be rows and
// what must have been set aside, and returns how many records it holds.
func (l *lane) decode(m *record.Message, row func(row int), aside func(index, n int, fate string)) int {
	l.columns.Reset()
	m.Incarnation = l.position.Incarnation
	var bad []*record.BadRecordError
	err := errUnknownTopic
	if m.Topic == stream.RecordTopic(m.Lane) {
		bad, err = l.columns.AppendGood(m)
	}
	if fate, known := l.fates[origin{m.Incarnation, m.Lane, m.Seq, -1}]; known || err != nil {
		n := max(m.Records, 1)
		aside(-1, n, fate)
		return n
	}
	for _, b := range bad {
		aside(b.Index, 1, l.fates[origin{m.Incarnation, m.Lane, m.Seq, b.Index}])
	}
	for i := range l.columns.Rows() {
		index := int(l.columns.StreamIdx[i])
		if fate, known := l.fates[origin{m.Incarnation, m.Lane, m.Seq, index}]; known {
			aside(index, 1, fate)
		} else {
			row(i)
		}
	}
	return len(bad) + l.columns.Rows()
}
