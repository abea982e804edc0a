package server_test

import (
	"fmt"
	"reflect"
	"sort"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// newOf is a destination for values of the column.
func newOf(c driver.ColumnType) any { return reflect.New(c.ScanType()).Interface() }

// show prints a value, through pointers, the same way for any Go type.
func show(value any) string {
	if at, ok := value.(time.Time); ok {
		return at.UTC().Format(time.RFC3339Nano)
	}
	v := reflect.ValueOf(value)
	switch v.Kind() {
	case reflect.Invalid:
		return "NULL"
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return "NULL"
		}
		return show(v.Elem().Interface())
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return fmt.Sprintf("%q", v.Bytes())
		}
		var parts []string
		for i := range v.Len() {
			parts = append(parts, show(v.Index(i).Interface()))
		}
		return "[" + strings.Join(parts, " ") + "]"
	case reflect.Map:
		var parts []string
		for _, key := range v.MapKeys() {
			parts = append(parts, show(key.Interface())+":"+show(v.MapIndex(key).Interface()))
		}
		sort.Strings(parts)
		return "[" + strings.Join(parts, " ") + "]"
	case reflect.String:
		return fmt.Sprintf("%q", v.String())
	}
	if s, ok := value.(fmt.Stringer); ok {
		return fmt.Sprintf("%q", s.String())
	}
	return fmt.Sprint(value)
}
