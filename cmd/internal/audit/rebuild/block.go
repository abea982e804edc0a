package rebuild

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"sluice/cmd/internal/audit/expiry"
	"sluice/pkg/flow"
	"sluice/pkg/ingest/dedup"
	"sluice/pkg/record"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// block is a run of messages.
type block struct {
	*lane
	first, last uint64
	stored      time.Time // time of the last message
	day         string    // stored day of its rows; empty without any
	columns     record.Columns
	scratch     record.Columns
	again       map[int]bool // rows by place whose request is a repeat
	unsure      []int        // rows by place whose request may repeat a purged message
	hash        *xxh3.Hasher
}

func (b *block) reset() {
	b.first, b.last, b.day = 0, 0, ""
	b.columns.Reset()
	b.hash.Reset()
	b.again = map[int]bool{}
	b.unsure = b.unsure[:0]
}

// storedAt is a time of the block's stored day, in ms since 1970: that of the last message,
// unless its rows were stored on another day.
func (b *block) storedAt() int64 {
	if day, err := time.Parse(time.DateOnly, b.day); err == nil && flow.UTCDay(b.stored.UnixMilli()) != b.day {
		return day.UnixMilli()
	}
	return b.stored.UnixMilli()
}

// full reports whether the block ends. A claimed block has the end in its claim.
func (b *block) full(claim warehouse.Claim) bool {
	return claim.Last == 0 && (b.columns.Rows() >= b.cfg.Rows || b.columns.Bytes() >= b.cfg.Bytes)
}

func (b *block) token(dropped string) string {
	sum := b.hash.Sum128().Bytes()
	return fmt.Sprintf("FLOW_%d@%d:%d-%d:%s:%x", b.info.Number, b.state.IncarnationOf(b.first), b.first, b.last, hex.EncodeToString(sum[:]), xxh3.HashString(dropped))
}

// settle looks the unsure rows up in the live tables: a repeat of a purged message has no
// row at its own place. Neither has a row that the live tables lost when they were set back:
// of the messages that they do not reach, unsure rows are inserted rather than lost.
func (b *block) settle(ctx context.Context) error {
	if len(b.unsure) == 0 {
		return nil
	}
	c := &b.columns
	stored, err := b.into.Live().Places(ctx, b.info.Number, b.state.IncarnationOf(b.first), c.StreamSeq[b.unsure[0]], c.StreamSeq[b.unsure[len(b.unsure)-1]])
	for _, row := range b.unsure {
		seq := c.StreamSeq[row]
		b.again[row] = !stored[warehouse.Place{Seq: seq, Idx: c.StreamIdx[row]}] && (seq <= b.live || seq > b.state.LastRow)
	}
	return err
}

// repeated are the rows that the shadow or an earlier row of the block already has.
func (b *block) repeated(ctx context.Context) (runs []flow.Run, err error) {
	c := &b.columns
	var rows []int
	for row := range c.Rows() {
		if c.Kind[row] != flow.ByPlace || c.IsReplayed(row) {
			rows = append(rows, row)
		}
	}
	same := dedup.NewSame(c)
	if len(rows) > 0 {
		// A record whose original had expired was stored again, though the original may be in the shadow.
		line, err := expiry.LineAt(ctx, b.stream, b.into.Live(), time.UnixMilli(b.storedAt()))
		if err == nil {
			err = b.into.Known(ctx, c, rows, line, same.Stored)
		}
		if err != nil {
			return nil, err
		}
	}
	for row := range c.Rows() {
		if !b.again[row] && !same.Add(row) {
			continue
		}
		runs = flow.AddRow(runs, row)
	}
	return runs, nil
}

// add adds the records of an entry, except invalid, forgotten, and dead-lettered ones.
func (b *block) add(e *flow.Entry) error {
	if b.first == 0 {
		b.first = e.Seq
	}
	b.last, b.stored = e.Seq, e.Stored
	for _, raw := range [...][]byte{e.Table, e.Body} {
		_, _ = b.hash.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(raw))))
		_, _ = b.hash.Write(raw)
	}
	void, sentBefore := b.requests.Add(e)
	if e.Err != nil || e.Topic != stream.RecordTopic(e.Lane) {
		return nil
	}
	for i := range e.Messages {
		m := &e.Messages[i]
		if void(m) {
			continue
		}
		before := b.columns.Rows()
		if err := b.addMessage(m); err != nil {
			return err
		}
		for row := before; row < b.columns.Rows(); row++ {
			if b.columns.Kind[row] == flow.ByPlace {
				switch sure, perhaps := sentBefore(m, int(b.columns.StreamIdx[row])); {
				case sure:
					b.again[row] = true
				case perhaps:
					b.unsure = append(b.unsure, row)
				}
			}
		}
	}
	return nil
}

func (b *block) addMessage(m *flow.Message) error {
	m.Incarnation = b.state.IncarnationOf(m.Seq)
	dead := b.dead[place{m.Lane, m.Incarnation, m.Seq}]
	if dead[-1-m.Ordinal] {
		return nil
	}
	b.scratch.Reset()
	bad, err := b.scratch.AppendGood(m)
	if err != nil {
		return nil // dead-lettered as a whole
	}
	skip := map[int]bool{}
	for _, one := range bad {
		skip[one.Index] = true
	}
	for _, row := range b.forget.Rows(m, &b.scratch, 0) {
		skip[int(b.scratch.StreamIdx[row])] = true
	}
	return b.columns.AppendExcept(m, func(index int) bool { return skip[index] || dead[index] })
}
