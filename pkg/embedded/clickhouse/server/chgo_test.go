package server_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

var chCompressions = map[string]ch.Compression{"plain": ch.CompressionDisabled, "lz4": ch.CompressionLZ4, "zstd": ch.CompressionZSTD}

func dial(t *testing.T, database string, options ch.Options) *ch.Client {
	t.Helper()
	options.Address, options.Database = clickhousetest.Shared(t).Addr(), database
	c, err := ch.Dial(t.Context(), options)
	fatal.If(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func do(t *testing.T, c *ch.Client, q ch.Query) {
	t.Helper()
	if err := c.Do(t.Context(), q); err != nil {
		t.Fatalf("%.200s: %v", q.Body, err)
	}
}

func chCount(t *testing.T, c *ch.Client, from string) uint64 {
	t.Helper()
	var n proto.ColUInt64
	do(t, c, ch.Query{Body: "SELECT count() AS n FROM " + from, Result: proto.Results{{Name: "n", Data: &n}}})
	return n.Row(0)
}

// chBlock has columns of the types that the ingester sends.
type chBlock struct {
	id      proto.ColStr
	key     proto.ColInt64
	lc      *proto.ColLowCardinality[string]
	ts      proto.ColDateTime64
	retries *proto.ColNullable[int64]
	seq     proto.ColUInt64
	idx     proto.ColUInt32
	lane    proto.ColUInt16
}

func newChBlock() *chBlock {
	b := &chBlock{lc: new(proto.ColStr).LowCardinality(), retries: new(proto.ColInt64).Nullable()}
	b.ts.WithPrecision(proto.PrecisionMilli)
	return b
}

func (b *chBlock) input() proto.Input {
	return proto.Input{
		{Name: "id", Data: &b.id}, {Name: "key", Data: &b.key}, {Name: "lc", Data: b.lc}, {Name: "ts", Data: &b.ts},
		{Name: "retries", Data: b.retries}, {Name: "seq", Data: &b.seq}, {Name: "idx", Data: &b.idx}, {Name: "lane", Data: &b.lane},
	}
}

func (b *chBlock) add(n int64) {
	b.id.Append("id-" + time.Unix(n, 0).UTC().Format(time.RFC3339))
	b.key.Append(n)
	b.lc.Append([]string{"", "a", "b"}[n%3])
	b.ts.Append(time.UnixMilli(n).UTC())
	if n%2 == 0 {
		b.retries.Append(proto.NewNullable(n))
	} else {
		b.retries.Append(proto.Null[int64]())
	}
	b.seq.Append(uint64(n))
	b.idx.Append(uint32(n))
	b.lane.Append(uint16(n))
}

func TestChGoStreamsInputAndContinuesAfterExceptions(t *testing.T) {
	database, _ := clickhousetest.FreshDatabase(t)
	for name, compression := range chCompressions {
		t.Run(name, func(t *testing.T) {
			c := dial(t, database, ch.Options{Compression: compression})
			do(t, c, ch.Query{Body: "CREATE OR REPLACE TABLE t (a Int64) ENGINE = MergeTree ORDER BY a PARTITION BY a % 10"})
			var a proto.ColInt64
			blocks := 0
			input := proto.Input{{Name: "a", Data: &a}}
			next := func(context.Context) error {
				a.Reset()
				if blocks++; blocks > 5 {
					return io.EOF
				}
				for n := range int64(100) {
					a.Append(n)
				}
				return nil
			}
			do(t, c, ch.Query{Body: input.Into("t"), Input: input, OnInput: next})
			if n := chCount(t, c, "t"); n != 500 {
				t.Fatalf("got %d rows, want 500", n)
			}
			wantChCode(t, c.Do(t.Context(), ch.Query{Body: "SELECT nosuch"}), 47)
			wantChCode(t, c.Do(t.Context(), ch.Query{Body: input.Into("nosuch"), Input: input}), 60)
			blocks = 0
			limited := []ch.Setting{{Key: "max_partitions_per_insert_block", Value: "3", Important: true}}
			wantChCode(t, c.Do(t.Context(), ch.Query{Body: input.Into("t"), Input: input, OnInput: next, Settings: limited}), 252)
			if err := c.Ping(t.Context()); err != nil {
				t.Fatalf("after exceptions: %v", err)
			}
			if n := chCount(t, c, "t"); n != 500 {
				t.Fatalf("got %d rows, want 500", n)
			}
		})
	}
}

func wantChCode(t *testing.T, err error, code int) {
	t.Helper()
	if exception, ok := ch.AsException(err); !ok || int(exception.Code) != code {
		t.Fatalf("got %v, want code %d", err, code)
	}
}

// errStop aborts an INSERT.
var errStop = errors.New("stop here")

func TestClientGoneInMidInsertStoresNothing(t *testing.T) {
	database, address := clickhousetest.FreshDatabase(t)
	check := open(t, address)
	for name, compression := range chCompressions {
		for _, way := range []string{"cancel between blocks", "close between blocks", "close inside of a block"} {
			t.Run(name+", "+way, func(t *testing.T) {
				run(t, check, "CREATE OR REPLACE TABLE t (a Int64) ENGINE = MergeTree ORDER BY a")
				socket := &cutConn{left: -1}
				options := ch.Options{Compression: compression, ReadTimeout: 200 * time.Millisecond, Dialer: socket}
				c := dial(t, database, options)
				var a proto.ColInt64
				blocks := 0
				input := proto.Input{{Name: "a", Data: &a}}
				err := c.Do(t.Context(), ch.Query{Body: input.Into("t"), Input: input, OnInput: func(ctx context.Context) error {
					a.Reset()
					for n := range int64(100_000) {
						a.Append(n * n * 7919)
					}
					if blocks++; blocks == 4 {
						switch way {
						case "cancel between blocks":
							return errStop
						case "close between blocks":
							socket.left = 0
						case "close inside of a block":
							socket.left = 70_000
						}
					}
					return nil
				}})
				fatal.When(t, err == nil, "the INSERT did not fail")
				running := "system.processes WHERE query LIKE 'INSERT%' AND current_database = '" + database + "'"
				for deadline := time.Now().Add(5 * time.Second); count(t, check, running) > 0; time.Sleep(10 * time.Millisecond) {
					fatal.When(t, time.Now().After(deadline), "the INSERT still runs in the engine")
				}
				expect.Equal(t, "rows stored", uint64(0), count(t, check, "t"))
			})
		}
	}
}

// cutConn is a connection that is closed after left more bytes, unless left is negative.
type cutConn struct {
	net.Conn
	left int
}

func (c *cutConn) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	var err error
	c.Conn, err = new(net.Dialer).DialContext(ctx, network, address)
	return c, err
}

func (c *cutConn) Write(p []byte) (int, error) {
	if c.left < 0 || len(p) <= c.left {
		if c.left > 0 {
			c.left -= len(p)
		}
		return c.Conn.Write(p)
	}
	n, _ := c.Conn.Write(p[:c.left])
	c.Conn.Close()
	return n, net.ErrClosed
}
