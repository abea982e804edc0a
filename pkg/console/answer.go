package console

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
)

// answer is the result of a statement of any shape.
type answer struct {
	Columns []answerColumn
	Rows    [][]cell
	More    bool // more rows exist than were read
	Cut     bool // some values were truncated
	Took    time.Duration
}

// Bounds of the answer that a page keeps in memory: one value of a record can have 16 MiB.
const (
	maxValue  = 16 << 10  // bytes of one value
	maxAnswer = 8 << 20   // bytes of all rows
	maxResult = 128 << 20 // max_result_bytes of ClickHouse
)

type answerColumn struct {
	Name, Type string
	Number     bool // can be drawn
	Moment     bool // a date or a time
	Day        bool // a date, without a time zone
}

// cell is one value: as text, and also as a number when it is a number or a time.
type cell struct {
	Text   string
	Null   bool
	Value  float64   // of a time, Unix seconds
	Moment bool      // a point in time, not a date
	At     time.Time // set when Moment
}

// read runs a statement and passes a maximum number of rows to row. more reports
// whether further rows exist.
func read(ctx context.Context, db Warehouse, sql string, limit int, begin func([]answerColumn) error, row func([]cell) error) (more bool, err error) {
	defer ended(ctx, &err)
	rows, err := db.Query(clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{"max_result_bytes": maxResult})), sql)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	types := rows.ColumnTypes()
	columns := make([]answerColumn, len(types))
	places := make([]any, len(types))
	for i, t := range types {
		columns[i] = answerColumn{Name: t.Name(), Type: t.DatabaseTypeName()}
		plain := wrapped.ReplaceAllString(columns[i].Type, "")
		columns[i].Moment = strings.HasPrefix(plain, "Date")
		columns[i].Day = columns[i].Moment && !strings.HasPrefix(plain, "DateTime")
		for _, kind := range []string{"Int", "UInt", "Float", "Decimal"} {
			columns[i].Number = columns[i].Number || strings.HasPrefix(plain, kind)
		}
		places[i] = reflect.New(t.ScanType()).Interface()
	}
	if err := begin(columns); err != nil {
		return false, err
	}
	for n := 0; rows.Next(); n++ {
		if n == limit {
			return true, nil
		}
		if err := rows.Scan(places...); err != nil {
			return false, err
		}
		cells := make([]cell, len(places))
		for i, place := range places {
			cells[i] = cellOf(reflect.ValueOf(place).Elem(), columns[i])
		}
		if err := row(cells); err != nil {
			return false, err
		}
	}
	return false, rows.Err()
}

// wrapped are the types around the one that decides how a value is shown.
var wrapped = regexp.MustCompile(`^(SimpleAggregateFunction\(\w+, |LowCardinality\(|Nullable\()*`)

// cellOf formats a value as ClickHouse does. Arrays, maps and tuples become JSON.
func cellOf(v reflect.Value, of answerColumn) cell {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if v.IsNil() {
			return cell{Text: "NULL", Null: true}
		}
		v = v.Elem()
	}
	switch value := v.Interface().(type) {
	case time.Time:
		if of.Day {
			return cell{Text: value.Format(time.DateOnly), Value: float64(value.Unix())}
		}
		return cell{Text: exactly(value), Value: float64(value.UnixMilli()) / 1000, Moment: true, At: value}
	case string:
		return cell{Text: value}
	case fmt.Stringer:
		number, _ := strconv.ParseFloat(value.String(), 64) // a decimal; anything else is not drawn
		return cell{Text: value.String(), Value: number}
	}
	switch v.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return cell{Text: strconv.FormatInt(v.Int(), 10), Value: float64(v.Int())}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return cell{Text: strconv.FormatUint(v.Uint(), 10), Value: float64(v.Uint())}
	case reflect.Float32, reflect.Float64:
		return cell{Text: strconv.FormatFloat(v.Float(), 'g', -1, 64), Value: v.Float()}
	}
	value := v.Interface()
	if small, ok := value.([]uint8); ok { // json.Marshal would encode it as base64
		wide := make([]uint16, len(small))
		for i, n := range small {
			wide[i] = uint16(n)
		}
		value = wide
	}
	text, err := json.Marshal(value)
	if err != nil {
		text = fmt.Append(nil, v.Interface()) // such as a NaN in an array
	}
	return cell{Text: string(text)}
}

// errEnough stops read once maxAnswer bytes are kept.
var errEnough = errors.New("maximum size reached")

// ask runs a statement. It keeps a maximum number of rows and truncates long values.
func ask(ctx context.Context, db Warehouse, sql string, limit int) (a answer, err error) {
	began, size := time.Now(), 0
	a.More, err = read(ctx, db, sql, limit,
		func(columns []answerColumn) error { a.Columns = columns; return nil },
		func(row []cell) error {
			for i := range row {
				if len(row[i].Text) > maxValue {
					row[i].Text = strings.ToValidUTF8(row[i].Text[:maxValue], "") + "…" // a copy, so that the whole value can be freed
					a.Cut = true
				}
				size += len(row[i].Text)
			}
			if size > maxAnswer && len(a.Rows) > 0 {
				return errEnough
			}
			a.Rows = append(a.Rows, row)
			return nil
		})
	if errors.Is(err, errEnough) {
		a.More, err = true, nil
	}
	a.Took = time.Since(began)
	return a, err
}

// writeCSV writes an answer as CSV. It returns an error beyond the maximum number of rows.
func writeCSV(ctx context.Context, db Warehouse, sql string, limit int, w io.Writer) error {
	out := csv.NewWriter(w)
	var columns []answerColumn
	var line []string
	more, err := read(ctx, db, sql, limit,
		func(all []answerColumn) error {
			columns, line = all, make([]string, len(all))
			for i, c := range all {
				line[i] = harmless(c.Name)
			}
			return out.Write(line)
		},
		func(row []cell) error {
			for i, c := range row {
				switch {
				case c.Null:
					line[i] = ""
				case columns[i].Number || columns[i].Moment:
					line[i] = c.Text
				default:
					line[i] = harmless(c.Text)
				}
			}
			return out.Write(line)
		})
	out.Flush()
	if err == nil && more {
		err = fmt.Errorf("more than %d rows: add a LIMIT or a condition", limit)
	}
	if err == nil {
		err = out.Error()
	}
	return err
}

// harmless prevents CSV injection: a text that a spreadsheet would run as a formula
// gets a leading quote, which spreadsheets hide.
func harmless(text string) string {
	if text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0])) {
		return "'" + text
	}
	return text
}
