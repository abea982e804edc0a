package verify

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"sluice/pkg/flow"
	"sluice/pkg/ingest/dedup"
	"sluice/pkg/record"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
	"sluice/pkg/warehouse/native"
)

const (
	// runWidth is the number of messages per sum; a run is inspected when its sum differs.
	runWidth = 64

	// segmentWidth is the number of messages per query, each of which scans the table.
	segmentWidth = runWidth << 16
)

// Outcomes of forgotten records, beside those of dead letters.
const (
	forgottenStored   = "forgotten, and was stored"
	forgottenUnstored = "forgotten, and was not stored"
)

// errUnknownTopic: the message is dead-lettered as a whole.
var errUnknownTopic = errors.New("a message of an unknown topic")

// lane accounts for one lane.
type lane struct {
	*verifier
	Lane
	info     stream.Lane
	position flow.LaneState // messages up to its checkpoint are settled
	claimed  uint64         // last message of the claimed block, 0 when none
	minutes  minutes
	digest   *native.Digest
	columns  record.Columns

	segment   uint64                   // its first message
	want      map[uint64]warehouse.Sum // of the segment, by run
	rowless   rowless                  // records without a row of their own, for search
	requests  *dedup.Ledger
	forgotten map[warehouse.Place]bool // places whose rows were removed
	void      map[request]bool         // void requests
	again     map[origin]bool          // records by place that are repeats; perhaps, when false
	kept      flow.Totals              // of the settled messages that were read
	unsure    uint64                   // records without a row whose original may be purged or expired
	pin       atomic.Uint64            // messages from here on are not purged
}

// request is a request of an entry.
type request struct {
	seq     uint64
	ordinal int
}

// account reads the lane from First to Last.
func (l *lane) account(ctx context.Context) error {
	defer l.minutes.into(&l.Lane)
	if l.position.Base() > 0 {
		l.note("lane %d was reset at message %d by an operator: earlier messages are not verified", l.Lane.Lane, l.position.Base())
	}
	var err error
	if l.forgotten, err = l.db.ForgottenPlaces(ctx, l.Lane.Lane, l.position.Incarnation()); err != nil {
		return err
	}
	l.begin(l.First)
	if err := l.read(ctx); err != nil {
		return err
	}
	if err := l.compare(ctx, l.Settled); err != nil {
		return err
	}
	l.pin.Store(l.Last + 1)
	if err := l.search(ctx); err != nil {
		return err
	}
	if l.unsure > 0 {
		l.note("%d records of lane %d have no row, and their originals may be purged or expired: only the totals count them", l.unsure, l.Lane.Lane)
	}
	return l.before(ctx)
}

// begin starts a segment.
func (l *lane) begin(seq uint64) {
	l.segment = seq
	l.pin.Store(seq)
	l.want = map[uint64]warehouse.Sum{}
}

func (l *lane) read(ctx context.Context) error {
	if l.First > l.Last {
		return nil
	}
	reader, err := l.stream.OpenLane(ctx, l.Lane.Lane, l.First, 0)
	if err != nil {
		return l.orPurged(ctx, l.First, err)
	}
	defer reader.Close()
	for seq := l.First; seq <= l.Last; seq++ {
		e, err := reader.Next(ctx)
		if err != nil {
			return l.orPurged(ctx, seq, err)
		}
		if seq-l.segment == segmentWidth {
			if err := l.compare(ctx, min(seq-1, l.Settled)); err != nil {
				return err
			}
			l.begin(seq)
		}
		l.entry(&e)
		if l.verifier.read++; l.verifier.read%512 == 0 {
			l.cfg.Progress(l.verifier.read, l.total)
		}
	}
	return nil
}

// entry counts the records of an entry by their expected outcome.
func (l *lane) entry(e *flow.Entry) {
	switch e.Topic {
	case stream.RecordTopic(e.Lane):
	case stream.MoveTopic(e.Lane), stream.TickTopic(e.Lane):
		l.requests.Add(e)
		return
	default:
		if strings.HasPrefix(e.Topic, stream.ChangePrefix) {
			l.requests.Add(e)
			l.Changes++
			return
		}
	}
	void, sentBefore := l.requests.Add(e)
	l.columns.Reset()
	for i := range e.Messages {
		switch m := &e.Messages[i]; {
		case e.Seq > l.Settled:
			l.waits(m)
		case void(m):
			l.void[request{m.Seq, m.Ordinal}] = true
			n := uint64(m.Records)
			t := l.minutes.at(m.Received)
			t.Accepted += n
			t.Void += n
			l.kept.Read += n
			l.kept.Void += n
		default:
			l.message(e, m, sentBefore)
		}
	}
}

// waits counts the records of a message that is backlog.
func (l *lane) waits(m *flow.Message) {
	t := l.minutes.at(m.Received)
	n := uint64(max(m.Records, 1))
	t.Accepted += n
	t.Waiting += n
	if m.Seq <= l.claimed {
		l.InDoubt += n
	}
}

// message counts the records of a settled message.
func (l *lane) message(e *flow.Entry, m *flow.Message, sentBefore func(*flow.Message, int) (sure, perhaps bool)) {
	t := l.minutes.at(m.Received)
	records := l.decode(e, m, func(row int) {
		run := (m.Seq - l.segment) / runWidth
		sum := l.want[run]
		sum.Rows++
		sum.Digest += l.digest.Row(&l.columns, row)
		l.want[run] = sum
		t.Stored++
		l.kept.Stored++
		if l.columns.Kind[row] == flow.ByPlace {
			index := int(l.columns.StreamIdx[row])
			if sure, perhaps := sentBefore(m, index); perhaps {
				l.again[origin{m.Incarnation, m.Lane, m.Seq, index}] = sure
			}
		}
	}, func(index, n int, outcome string) {
		l.kept.DeadLettered += uint64(n)
		switch outcome {
		case stream.OutcomeDead:
			t.Dead += uint64(n)
		case stream.OutcomeReplayed:
			t.Replayed += uint64(n)
		case stream.OutcomeDropped:
			t.Dropped += uint64(n)
		case forgottenStored, forgottenUnstored:
			t.Forgotten += uint64(n)
			l.kept.DeadLettered -= uint64(n)
			if outcome == forgottenStored {
				l.kept.Stored += uint64(n)
			} else {
				l.kept.Forgotten += uint64(n) // or deduplicated: see before
			}
		default:
			t.Missing += uint64(n)
			l.find(Finding{Kind: Missing, Lane: m.Lane, Sequence: m.Seq, Index: index, Received: m.Received,
				Detail: "cannot be decoded, and is not dead-lettered"})
		}
	})
	t.Accepted += uint64(records)
	l.kept.Read += uint64(records)
}

// decode splits a message as the ingester does, into expected rows, which it adds to the
// columns, and dead or forgotten records. It returns the number of records.
func (l *lane) decode(e *flow.Entry, m *flow.Message, row func(row int), dead func(index, n int, outcome string)) int {
	m.Incarnation = l.position.IncarnationOf(m.Seq)
	before := l.columns.Rows()
	var bad []*record.BadRecordError
	err := errUnknownTopic
	if m.Topic == stream.RecordTopic(m.Lane) {
		if err = e.Err; err == nil {
			bad, err = l.columns.AppendGood(m)
		}
	}
	whole := -1 - m.Ordinal
	if err != nil && l.forget.Names(m, -1, m.Body) {
		if _, known := l.outcomes[origin{m.Incarnation, m.Lane, m.Seq, whole}]; !known {
			n := max(m.Records, 1)
			dead(whole, n, forgottenUnstored)
			return n
		}
	}
	if outcome, known := l.outcomes[origin{m.Incarnation, m.Lane, m.Seq, whole}]; known || err != nil {
		n := max(m.Records, 1)
		dead(whole, n, outcome)
		return n
	}
	for _, b := range bad {
		outcome, known := l.outcomes[origin{m.Incarnation, m.Lane, m.Seq, b.Index}]
		if !known && l.forget.Names(m, b.Index, b.Raw) {
			outcome = forgottenUnstored
		}
		dead(b.Index, 1, outcome)
	}
	skipped := l.forget.Rows(m, &l.columns, before)
	for i := before; i < l.columns.Rows(); i++ {
		index := int(l.columns.StreamIdx[i])
		skip := len(skipped) > 0 && skipped[0] == i
		if skip {
			skipped = skipped[1:]
		}
		outcome, known := l.outcomes[origin{m.Incarnation, m.Lane, m.Seq, index}]
		switch {
		case known:
			dead(index, 1, outcome)
		case l.forgotten[warehouse.Place{Seq: m.Seq, Idx: uint32(index)}]:
			dead(index, 1, forgottenStored)
		case skip:
			dead(index, 1, forgottenUnstored)
		default:
			row(i)
		}
	}
	return len(bad) + l.columns.Rows() - before
}
