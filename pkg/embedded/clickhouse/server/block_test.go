package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/ClickHouse/ch-go/compress"
	"github.com/ClickHouse/ch-go/proto"
	"github.com/google/go-cmp/cmp"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/clickhouse/library"
	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// everyLayout is a SELECT with every column layout.
const everyLayout = `SELECT
	toInt8(number) AS a, toUInt16(number) AS b, toInt32(number) AS c, number AS d, toInt128(number) AS e, toUInt256(number) AS f,
	toFloat32(number) AS g, toFloat64(number) AS h, modulo(number, 2) = 0 AS i, toDate(number) AS j, toDateTime(number, 'UTC') AS k, toDateTime64(number, 3, 'UTC') AS l,
	toDecimal32(number, 2) AS m, toDecimal64(number, 4) AS n, toDecimal128(number, 6) AS o, toDecimal256(number, 8) AS p,
	generateUUIDv4() AS q, toIPv4('1.2.3.4') AS r, toIPv6('::1') AS s, CAST(modulo(number, 2), 'Enum8(\'(,\' = 0, \'b\' = 1)') AS t, CAST(modulo(number, 2), 'Enum16(\'a\' = 0, \'b\' = 1)') AS u,
	toString(number) AS v, repeat('x', modulo(number, 300)) AS w, toFixedString(toString(modulo(number, 10)), 3) AS x,
	if(modulo(number, 3) = 0, NULL, number) AS y, if(modulo(number, 3) = 0, NULL, toString(number)) AS z, NULL AS nothing,
	toLowCardinality(toString(modulo(number, 700))) AS lc, toLowCardinality(if(modulo(number, 3) = 0, NULL, toString(number))) AS lcn,
	range(modulo(number, 4)) AS arr, arrayMap(x -> range(x), range(modulo(number, 4))) AS arr2, arrayMap(x -> toLowCardinality(toString(x)), range(modulo(number, 3))) AS arrlc,
	CAST([], 'Array(LowCardinality(String))') AS noarrlc, CAST([], 'Array(Array(Nullable(Int64)))') AS noarr,
	map('k', number) AS mp, CAST(map(), 'Map(LowCardinality(String), Array(String))') AS nomap, (number, toString(number)) AS tp,
	CAST((number, 'x'), 'Tuple(a Int64, ` + "`b c`" + ` LowCardinality(String))') AS ntp, tuple() AS notp,
	(1.5, 2.5)::Point AS pt, [[(1., 2.), (3., 4.)]]::Polygon AS pg, INTERVAL 1 DAY AS iv, toTime64(number, 3) AS tm, toBFloat16(number) AS bf,
	CAST(number, 'SimpleAggregateFunction(sum, UInt64)') AS saf, CAST([(1, 'a')], 'Nested(x Int64, y String)') AS nst
FROM numbers(%d) SETTINGS allow_suspicious_low_cardinality_types = 1, enable_time_time64_type = 1`

// nativeOf is the result of a SELECT in FORMAT Native.
func nativeOf(t testing.TB, e *clickhousetest.Engine, sql string) []byte {
	t.Helper()
	return []byte(clickhousetest.Exec(t, e, sql+" FORMAT Native"))
}

// emptyInfo is the block info before a block on the wire.
func emptyInfo() []byte {
	var b proto.Buffer
	proto.BlockInfo{BucketNum: -1}.Encode(&b)
	return b.Buf
}

func TestBlockEndsWhereTheEngineEndsIt(t *testing.T) {
	e := clickhousetest.Shared(t)
	for _, rows := range []int{1, 2, 5, 1000} {
		body := nativeOf(t, e, fmt.Sprintf(strings.Replace(everyLayout, "SETTINGS ", "SETTINGS max_block_size = 100000, ", 1), rows))
		after := append(append(emptyInfo(), body...), "what follows"...)
		source := bytes.NewReader(after)
		columns, got, read, err := server.ReadBlock(onlyReader{source}, 1<<30)
		fatal.When(t, err != nil, "%d rows: %v", rows, err)
		expect.Not(t, columns != 46 || got != uint64(rows) || !bytes.Equal(read, body), "%d rows: read %d columns, %d rows, %d bytes of %d", rows, columns, got, len(read), len(body))
		if _, _, _, err := server.ReadBlock(bytes.NewReader(after), uint64(len(body)-1)); err == nil && rows > 0 {
			t.Errorf("%d rows: a block larger than allowed is read", rows)
		}
		for _, cut := range []int{1, len(body) / 3, len(body) / 2, len(body) - 1} {
			short := append(emptyInfo(), body[:cut]...)
			if _, _, _, err := server.ReadBlock(bytes.NewReader(short), 1<<30); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%d rows cut at %d: %v", rows, cut, err)
			}
		}
	}
}

// onlyReader hides all but Read.
type onlyReader struct{ io.Reader }

func TestBlockRefusesWhatItCannotRead(t *testing.T) {
	block := func(rows int, typ string, data ...byte) []byte {
		var b proto.Buffer
		proto.BlockInfo{}.Encode(&b)
		b.PutInt(1)
		b.PutInt(rows)
		b.PutString("column")
		b.PutString(typ)
		return append(b.Buf, data...)
	}
	for name, c := range map[string]struct {
		data []byte
		want int
	}{
		"JSON":                        {block(1, "JSON"), 48},
		"an aggregate function":       {block(1, "AggregateFunction(sum, UInt64)"), 48},
		"an unknown type":             {block(1, "Nosuch"), 48},
		"a type without parameter":    {block(1, "Array"), 117},
		"no type":                     {block(1, ""), 117},
		"an open parenthesis":         {block(1, "Array(Int8"), 117},
		"types in types in types":     {block(1, strings.Repeat("Array(", 100)+"Int8"+strings.Repeat(")", 100)), 117},
		"a size that is not a number": {block(1, "FixedString(x)"), 117},
		"more rows than fit":          {block(1<<40, "UInt64"), 117},
		"a text longer than fits":     {block(1, "String", 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f), 117},
		"an array longer than fits":   {block(1, "Array(UInt64)", 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f), 117},
		"another LowCardinality":      {block(1, "LowCardinality(String)", 2, 0, 0, 0, 0, 0, 0, 0), 117},
		"a number without an end":     {bytes.Repeat([]byte{0xff}, 20), 117},
		"an unknown field of a info":  {[]byte{9}, 117},
	} {
		_, _, _, err := server.ReadBlock(bytes.NewReader(c.data), 1<<20)
		var exception *library.Exception
		if !errors.As(err, &exception) || exception.Code != c.want {
			t.Errorf("%s: %v, want code %d", name, err, c.want)
		}
	}
}

// FuzzReadBlock compares with ch-go, which decodes every value: both must find the same end of a
// block.
func FuzzReadBlock(f *testing.F) {
	for _, input := range []proto.Input{
		newChBlockOf(0).input(), newChBlockOf(1).input(), newChBlockOf(7).input(),
		{{Name: "a", Data: proto.NewArray(new(proto.ColStr).LowCardinality())}},
		{{Name: "m", Data: proto.NewMap[string, string](new(proto.ColStr), new(proto.ColStr))}},
	} {
		var b proto.Buffer
		block := proto.Block{Info: proto.BlockInfo{BucketNum: -1}, Columns: len(input), Rows: input[0].Data.Rows()}
		fatal.If(f, block.EncodeBlock(&b, server.PlainRevision, input))
		f.Add(b.Buf)
	}
	const end = "the end"
	f.Fuzz(func(t *testing.T, data []byte) {
		columns, rows, body, err := server.ReadBlock(bytes.NewReader(data), 1<<16)
		if err != nil || rows > 1<<12 || columns == 0 {
			return
		}
		whole := append(append(emptyInfo(), body...), end...)
		reader := proto.NewReader(bytes.NewReader(whole))
		var block proto.Block
		var results proto.Results
		if block.DecodeBlock(reader, server.PlainRevision, results.Auto()) != nil {
			return // it also checks values, and supports fewer types
		}
		rest, err := reader.ReadRaw(len(end))
		if err != nil || string(rest) != end || block.Columns != int(columns) || block.Rows != int(rows) {
			t.Fatalf("after %d columns of %d rows comes %q (%v); want %d of %d and %q", columns, rows, rest, err, block.Columns, block.Rows, end)
		}
	})
}

func newChBlockOf(rows int64) *chBlock {
	b := newChBlock()
	for n := range rows {
		b.add(n)
	}
	return b
}

func TestFramesAreUndone(t *testing.T) {
	data := bytes.Repeat([]byte("some data, and more of it. "), 10_000)
	for _, method := range []compress.Method{compress.LZ4, compress.LZ4HC, compress.ZSTD, compress.None} {
		var packed bytes.Buffer
		w := compress.NewWriter(compress.LevelZero, method)
		for rest := data; len(rest) > 0; rest = rest[min(len(rest), 100_000):] {
			fatal.If(t, w.Compress(rest[:min(len(rest), 100_000)]))
			packed.Write(w.Data)
		}
		whole := packed.Bytes()
		got, err := io.ReadAll(server.NewFrames(bytes.NewReader(whole)))
		expect.Not(t, err != nil || !bytes.Equal(got, data), "%v: %d bytes, %v", method, len(got), err)
		bent := bytes.Clone(whole)
		bent[len(bent)/2] ^= 1
		if _, err := io.ReadAll(server.NewFrames(bytes.NewReader(bent))); err == nil {
			t.Errorf("%v: a flipped bit is taken", method)
		}
		if _, err := io.ReadAll(server.NewFrames(bytes.NewReader(whole[:len(whole)-1]))); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%v: cut off: %v", method, err)
		}
	}
}

// FuzzFrames compares with ch-go's reader, as far as both allow the same frames.
func FuzzFrames(f *testing.F) {
	for _, method := range []compress.Method{compress.LZ4, compress.ZSTD, compress.None} {
		w := compress.NewWriter(compress.LevelZero, method)
		fatal.If(f, w.Compress([]byte("data data data data")))
		f.Add(w.Data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 24 && data[24] > 0 { // at least 16 MiB, which ch-go allocates
			return
		}
		want, wantErr := io.ReadAll(compress.NewReader(bytes.NewReader(data)))
		got, err := io.ReadAll(server.NewFrames(bytes.NewReader(data)))
		if err == nil && wantErr == nil || len(want) > 0 {
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
		}
	})
}

func TestOneBlockIsOnePartHoweverLarge(t *testing.T) {
	database, address := clickhousetest.FreshDatabase(t)
	c := open(t, address)
	for name, size := range map[string]struct {
		rows, width int
		options     string
	}{
		"1,048,449 rows, plain": {1_048_449, 1, ""},
		"1,048,449 rows, lz4":   {1_048_449, 1, "?compress=lz4"},
		"260 MB":                {260_000, 1000, "?compress=lz4"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, c, "CREATE OR REPLACE TABLE large (n UInt64, s String) ENGINE = MergeTree ORDER BY n PARTITION BY n % 2 SETTINGS non_replicated_deduplication_window = 100")
			run(t, c, "SYSTEM STOP MERGES large")
			numbers, texts := make([]uint64, size.rows), make([]string, size.rows)
			text := strings.Repeat("0123456789", (size.width+9)/10)[:size.width]
			for n := range numbers {
				numbers[n], texts[n] = uint64(n), text
			}
			batch, err := open(t, address+size.options).PrepareBatch(withSettings(t, tokenSettings(name)), "INSERT INTO large")
			fatal.If(t, err)
			fatal.If(t, errors.Join(batch.Column(0).Append(numbers), batch.Column(1).Append(texts), batch.Send()))
			var parts, rows uint64
			row(t, c, "SELECT count(), sum(rows) FROM system.parts WHERE active AND database = '"+database+"' AND table = 'large'", &parts, &rows)
			if parts != 2 || rows != uint64(size.rows) {
				t.Errorf("got %d parts of %d rows, want one part for each of 2 partitions, %d rows", parts, rows, size.rows)
			}
		})
	}
}
