package server_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

func TestDriverRoundTripsEveryTypeOfTheSchema(t *testing.T) {
	_, address := clickhousetest.FreshDatabase(t)
	for name, suffix := range connections {
		t.Run(name, func(t *testing.T) {
			c := open(t, address+suffix)
			fatal.If(t, c.Ping(t.Context()))
			run(t, c, `CREATE OR REPLACE TABLE types (
				s String, lc LowCardinality(String), lcn LowCardinality(Nullable(String)), fs FixedString(4),
				i32 Int32, i64 Int64, u8 UInt8, u16 UInt16, u32 UInt32, u64 UInt64, f Float64, b Bool,
				d DateTime('UTC'), d64 DateTime64(3, 'UTC'), day Date, uuid UUID, e Enum8('a' = 1, 'b' = 2), dec Decimal(18, 4),
				ns Nullable(String), ni Nullable(Int64), nd Nullable(DateTime64(3, 'UTC')),
				as Array(String), ai Array(Int64), aalc Array(Array(LowCardinality(String))), ani Array(Nullable(Int64)),
				m Map(String, Int64), mlc Map(LowCardinality(String), Array(String)), t Tuple(x Int64, y LowCardinality(String)), tt Tuple(String, Nullable(Int64)),
				sum SimpleAggregateFunction(sum, UInt64), last SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))),
				uniq SimpleAggregateFunction(groupUniqArrayArray, Array(String))
			) ENGINE = MergeTree ORDER BY i64`)
			at := time.Date(2026, 3, 4, 5, 6, 7, 89e6, time.UTC)
			text, number, low := "täxt\x00\n", int64(-1<<63), "low"
			rows := [][]any{
				{"", "", (*string)(nil), "abcd", int32(0), int64(0), uint8(0), uint16(0), uint32(0), uint64(0), 0.0, false,
					time.Unix(0, 0).UTC(), time.Unix(0, 0).UTC(), time.Unix(0, 0).UTC(), "00000000-0000-0000-0000-000000000000", "a", "0",
					(*string)(nil), (*int64)(nil), (*time.Time)(nil),
					[]string{}, []int64{}, [][]string{}, []*int64{},
					map[string]int64{}, map[string][]string{}, map[string]any{"x": int64(0), "y": ""}, []any{"", (*int64)(nil)},
					uint64(0), (*time.Time)(nil), []string{}},
				{"täxt\x00\n'\\", "low", &low, "efgh", int32(-1 << 31), int64(1<<63 - 1), uint8(255), uint16(65535), uint32(1<<32 - 1), uint64(1<<64 - 1), -1.5e300, true,
					at.Truncate(time.Second), at, at.Truncate(24 * time.Hour), "61f0c404-5cb3-11e7-907b-a6006ad3dba0", "b", "-12345.6789",
					&text, &number, &at,
					[]string{"a", "", text}, []int64{1, -1}, [][]string{{"x", "y"}, {}, {"x"}}, []*int64{&number, nil},
					map[string]int64{"k": -9}, map[string][]string{"k": {"v", "w"}}, map[string]any{"x": int64(7), "y": "low"}, []any{"z", &number},
					uint64(99), &at, []string{"u"}},
			}
			insert(t, c, "types", rows...)
			for i, want := range rows {
				got, err := c.Query(t.Context(), "SELECT * EXCEPT (dec), toString(dec) AS dec FROM types ORDER BY i64 LIMIT 1 OFFSET ?", i)
				fatal.If(t, err)
				if !got.Next() {
					t.Fatalf("row %d is missing: %v", i, got.Err())
				}
				want = append(append(append([]any{}, want[:17]...), want[18:]...), want[17])
				compareRow(t, got, want)
				got.Close()
			}
			var nulls uint64
			row(t, c, "SELECT countIf(lcn IS NULL) + countIf(ni IS NULL) + countIf(last IS NULL) FROM types", &nulls)
			expect.Not(t, nulls != 3, "got %d NULLs, want 3", nulls)
		})
	}
}

// compareRow compares the values of a row as printed: input and output of the driver print alike.
func compareRow(t *testing.T, got driver.Rows, want []any) {
	t.Helper()
	types := got.ColumnTypes()
	values := make([]any, len(types))
	for i := range types {
		values[i] = newOf(types[i])
	}
	fatal.If(t, got.Scan(values...))
	for i, value := range values {
		expect.Equal(t, fmt.Sprintf("column %s %s", types[i].Name(), types[i].DatabaseTypeName()), show(want[i]), show(value))
	}
}
