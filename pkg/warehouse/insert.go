package warehouse

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"

	"sluice/pkg/record"
)

// Insert stores the rows of the block. nil means durable, in the table and in every materialized view. The token makes
// repetitions with the same rows harmless, even after a success; another token or other rows would be stored again.
//
// The error is a *flow.StoreError. The outcome is then unknown, whatever the class: the table, or some of the views, may have
// the rows.
func (db *DB) Insert(ctx context.Context, b record.Block) error {
	if b.From == b.To {
		return nil // no rows: all dead-lettered, or no records
	}
	if b.StoredAt <= 0 {
		return errors.New("warehouse: Block.StoredAt is not set: its rows would expire immediately")
	}
	err := db.insertAt(ctx, db.inserts, "records", b.Token, cmp.Or(b.Timeout, db.cfg.InsertTimeout), blockColumns(b.Columns, b.From, b.To, b.StoredAt))
	if err == nil {
		db.metrics.parts.Add(float64(months(b.Columns.TS[b.From:b.To])))
	}
	return err
}

// serverMargin is how much earlier the server times out than the client: its exception then shows that the insert has ended.
const serverMargin = 5 * time.Second

// insertAt sends one attempt to one server.
func (db *DB) insertAt(ctx context.Context, at *connections, table, token string, timeout time.Duration, columns proto.Input) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	settings, err := db.insertSettings(ctx, table, token, timeout)
	if err != nil {
		return storeError("insert into "+db.name+"."+table, err)
	}
	err = at.send(ctx, ch.Query{
		Body:     fmt.Sprintf("INSERT INTO %s.%s %s VALUES", db.name, table, columns.Columns()),
		QueryID:  token + "-" + db.attempt(),
		Input:    columns, // one block: a token covers only one
		Settings: settings,
	})
	if err == nil {
		return nil
	}
	db.servers.replicas.Store(0) // query again: a failed replica may have left the cluster
	e := storeError("insert into "+db.name+"."+table, err)
	db.metrics.failures.WithLabelValues(classNames[e.Class]).Inc()
	return e
}

// send runs one insert or query on one connection.
func (db *DB) send(ctx context.Context, q ch.Query) error { return db.inserts.send(ctx, q) }

func (c *connections) send(ctx context.Context, q ch.Query) error {
	client, err := c.get(ctx)
	if err != nil {
		return err
	}
	if err := client.Do(ctx, q); err != nil {
		_ = client.Close()
		if _, _, answered := exception(err); !answered {
			c.reset()
		}
		return err
	}
	c.put(client)
	return nil
}

// insertSettings are the settings that exactly-once depends on, sent explicitly since server defaults have changed between
// versions. Check verifies the same.
func (db *DB) insertSettings(ctx context.Context, table, token string, timeout time.Duration) ([]ch.Setting, error) {
	all := []ch.Setting{
		{Key: "async_insert", Value: "0"}, // a queue would acknowledge before storing
		{Key: "insert_deduplicate", Value: "1"},
		{Key: "deduplicate_blocks_in_dependent_materialized_views", Value: "1"}, // else a repeated insert counts twice in the views
		{Key: "insert_deduplication_token", Value: token},
		{Key: "max_partitions_per_insert_block", Value: "0"}, // a backfill may span any number of months
		{Key: "optimize_on_insert", Value: "0"},              // merges collapse equal keys anyway; at insert it takes a quarter of the engine's time
	}
	if db.cfg.Cluster != "" {
		all = append(all, ch.Setting{Key: "distributed_foreground_insert", Value: "1"}) // a queue would acknowledge before storing
	}
	quorum, err := db.quorum(ctx, table == "changes")
	if err != nil {
		return nil, err
	}
	if quorum > 0 {
		all = append(all, ch.Setting{Key: "insert_quorum", Value: strconv.FormatInt(quorum, 10)}, ch.Setting{Key: "insert_quorum_parallel", Value: "1"})
	}
	if timeout > 2*serverMargin {
		all = append(all, ch.Setting{Key: "max_execution_time", Value: strconv.Itoa(int((timeout - serverMargin).Seconds()))})
	}
	for i := range all {
		all[i].Important = true // an unknown one is an error, not a warning
	}
	return all, nil
}

// attempt makes a query id that differs from that of earlier attempts, which may still run, even of an earlier process.
func (db *DB) attempt() string {
	return strconv.FormatInt(db.attempts.Add(1), 36)
}

// months counts the months of times in ms since 1970: an insert creates a part of flow.records for each.
func months(points []int64) int {
	type span struct{ from, to int64 }
	var seen []span
	var last span
next:
	for _, ms := range points {
		if last.from <= ms && ms < last.to {
			continue
		}
		for _, last = range seen {
			if last.from <= ms && ms < last.to {
				continue next
			}
		}
		year, month, _ := time.UnixMilli(ms).UTC().Date()
		last = span{
			time.Date(year, month, 1, 0, 0, 0, 0, time.UTC).UnixMilli(),
			time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC).UnixMilli(),
		}
		seen = append(seen, last)
	}
	return len(seen)
}

// blockColumns are the rows from to to-1 of c as columns of flow.records, with a stored_at in ms since 1970. They alias c.
func blockColumns(c *record.Columns, from, to int, storedAt int64) proto.Input {
	r := rows{from, to}
	all := proto.Input{{Name: "stored_at", Data: constant{storedAt, r}}}
	for _, column := range c.All() {
		all = append(all, proto.InputColumn{Name: column.Name, Data: r.of(column)})
	}
	return all
}

// rows is a range of rows, to exclusive.
type rows struct{ from, to int }

func (r rows) Rows() int { return r.to - r.from }

// inParts encodes and sends some rows at a time, so that a block is never encoded as a whole. Only the last part
// reports a failed write: after one, every later write of the connection fails too.
func (r rows) inParts(w *proto.Writer, encode func(b []byte, part rows) []byte) {
	const partRows = 1 << 14
	for ; r.Rows() > partRows; r.from += partRows {
		w.ChainBuffer(func(b *proto.Buffer) { b.Buf = encode(b.Buf, rows{r.from, r.from + partRows}) })
		_, _ = w.Flush()
	}
	w.ChainBuffer(func(b *proto.Buffer) { b.Buf = encode(b.Buf, r) })
}

// of are these rows of a column.
func (r rows) of(column record.Column) proto.ColInput {
	switch data := column.Data.(type) {
	case *record.LowCardinality:
		return symbol{data, r}
	case *record.StringColumn:
		return text{data, r}
	case *record.NullInt64:
		return number{data, r}
	case *[]int64:
		if column.Time {
			return r.milliseconds(*data)
		}
		return r.int64(*data)
	case *[]uint16:
		return proto.ColUInt16((*data)[r.from:r.to])
	case *[]uint32:
		return proto.ColUInt32((*data)[r.from:r.to])
	case *[]uint64:
		return proto.ColUInt64((*data)[r.from:r.to])
	}
	panic("column " + column.Name + " has an unsupported type") // a bug
}

func (r rows) int64(v []int64) proto.ColInt64 { return v[r.from:r.to] }

func (r rows) milliseconds(v []int64) proto.ColInput {
	values := r.int64(v)
	return proto.Alias(&values, "DateTime64(3, 'UTC')")
}

// constant is a column of one time, in ms since 1970.
type constant struct {
	ms int64
	rows
}

func (constant) Type() proto.ColumnType { return "DateTime64(3, 'UTC')" }

func (c constant) EncodeColumn(b *proto.Buffer) {
	b.Buf = slices.Grow(b.Buf, 8*c.Rows())
	for range c.Rows() {
		b.Buf = binary.LittleEndian.AppendUint64(b.Buf, uint64(c.ms))
	}
}

func (c constant) WriteColumn(w *proto.Writer) { w.ChainBuffer(c.EncodeColumn) }

// number is a Nullable(Int64) column.
type number struct {
	n *record.NullInt64
	rows
}

func (number) Type() proto.ColumnType { return "Nullable(Int64)" }

func (c number) EncodeColumn(b *proto.Buffer) {
	b.Buf = append(b.Buf, c.n.Nulls[c.from:c.to]...)
	b.Buf = c.values(b.Buf, c.rows)
}

func (c number) WriteColumn(w *proto.Writer) {
	w.ChainWrite(c.n.Nulls[c.from:c.to])
	c.inParts(w, c.values)
}

func (c number) values(b []byte, r rows) []byte {
	values := c.n.Between(r.from, r.to)
	b = slices.Grow(b, 8*r.Rows())
	for _, null := range c.n.Nulls[r.from:r.to] {
		v := int64(0)
		if null == 0 {
			v, values = values[0], values[1:]
		}
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

// text is a String column.
type text struct {
	t *record.StringColumn
	rows
}

func (text) Type() proto.ColumnType { return proto.ColumnTypeString }

func (c text) EncodeColumn(b *proto.Buffer) { b.Buf = c.values(b.Buf, c.rows) }

func (c text) WriteColumn(w *proto.Writer) { c.inParts(w, c.values) }

func (c text) values(b []byte, r rows) []byte { return appendText(b, c.t, r.from, r.to) }

// appendText appends strings in native format, each after its length.
func appendText(dst []byte, t *record.StringColumn, from, to int) []byte {
	if from == to {
		return dst
	}
	start := uint32(0)
	if from > 0 {
		start = t.Ends[from-1]
	}
	size := int(t.Ends[to-1] - start)
	dst = slices.Grow(dst, size+(to-from)*3) // lengths below 2 MiB take at most 3 bytes
	for _, end := range t.Ends[from:to] {
		dst = binary.AppendUvarint(dst, uint64(end-start))
		dst = append(dst, t.Buf[start:end]...)
		start = end
	}
	return dst
}

// symbol is a LowCardinality(String) column.
type symbol struct {
	s *record.LowCardinality
	rows
}

func (symbol) Type() proto.ColumnType {
	return proto.ColumnTypeLowCardinality.Sub(proto.ColumnTypeString)
}

// keysVersion and the flags of a LowCardinality column in native format: each block has its own dictionary.
const (
	keysVersion       = 1
	hasAdditionalKeys = 1 << 9
	needsUpdate       = 1 << 10
)

func (symbol) EncodeState(b *proto.Buffer) { b.PutInt64(keysVersion) }

func (c symbol) EncodeColumn(b *proto.Buffer) {
	c.encodeDictionary(b)
	c.keys().EncodeColumn(b)
}

func (c symbol) WriteColumn(w *proto.Writer) {
	w.ChainBuffer(c.encodeDictionary)
	c.keys().WriteColumn(w)
}

func (c symbol) encodeDictionary(b *proto.Buffer) {
	width := proto.KeyUInt8
	switch c.s.Width {
	case 2:
		width = proto.KeyUInt16
	case 4:
		width = proto.KeyUInt32
	}
	b.PutInt64(hasAdditionalKeys | needsUpdate | int64(width))
	values := &c.s.Values
	b.PutInt64(int64(values.Rows()))
	b.Buf = appendText(b.Buf, values, 0, values.Rows())
	b.PutInt64(int64(c.Rows()))
}

func (c symbol) keys() proto.ColInput {
	switch c.s.Width {
	case 2:
		return proto.ColUInt16(c.s.Keys16[c.from:c.to])
	case 4:
		return proto.ColUInt32(c.s.Keys32[c.from:c.to])
	}
	return proto.ColUInt8(c.s.Keys8[c.from:c.to])
}
