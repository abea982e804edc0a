package recordtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"time"
)

// columnOf names the column each member of a record, and of its value, is in:
// here those with a treatment of their own, and plainColumns.
var (
	outerColumns = map[string]string{
		"id": "id", "key": "key", "timestamp": "ts", "partitionId": "partition_id", "position": "position",
		"sourceRecordPosition": "source_record_position",
	}
	valueColumns = map[string]string{
		"processDefinitionVersion": "version", "elementId": "element_id", "deadline": "deadline",
		"variables": "variables", "customHeaders": "custom_headers",
	}
	numbers = map[string]bool{
		"key": true, "ts": true, "partition_id": true, "position": true, "source_record_position": true, "version": true, "deadline": true,
	}
	documents = map[string]bool{"variables": true, "custom_headers": true}
	notNull   = map[string]bool{"key": true, "ts": true, "partition_id": true, "position": true} // 0 means missing
)

func init() {
	for _, c := range plainColumns {
		if c.value {
			valueColumns[c.member] = c.name
		} else {
			outerColumns[c.member] = c.name
		}
		numbers[c.name] = c.integer
	}
}

// Posted returns a posted record in the form in which it can be compared with
// Queried: what says the same is written the same. The record passed Check.
//   - null, an empty string, key 0, and {} for variables, customHeaders or
//     value are what a missing member is;
//   - integers are numbers and times are ms, however they were sent;
//   - numbers where the specification has strings are strings;
//   - version and targetElementId are called what they stand for;
//   - id, partitionId and position are there if they can be derived.
func Posted(raw []byte) map[string]any {
	outer := tree(raw).(map[string]any)
	value, _ := outer["value"].(map[string]any)
	delete(outer, "value")
	rename(value, "version", "processDefinitionVersion", func(v any) bool { _, code := integer(marshal(v)); return code == "" })
	rename(value, "targetElementId", "elementId", func(v any) bool { _, code := text(marshal(v)); return code == "" })
	given := maps.Clone(outer)
	normalise(outer, outerColumns)
	normalise(value, valueColumns)
	id, _ := outer["id"].(string)
	partition, position := positionOf(id)
	if id == "" {
		outer["id"] = missingID(raw)
	}
	for name, n := range map[string]int64{"partitionId": partition, "position": position} {
		if given[name] == nil && n != 0 {
			outer[name] = number(n)
		}
	}
	if len(value) > 0 {
		outer["value"] = value
	}
	return outer
}

// rename gives a member another name that is not taken.
func rename(o map[string]any, from, to string, usable func(any) bool) {
	switch {
	case o[from] == nil:
		delete(o, from)
	case o[to] == nil && usable(o[from]):
		o[to] = o[from]
		delete(o, from)
	}
}

func normalise(o map[string]any, columns map[string]string) {
	for name, column := range columns {
		v, there := o[name]
		switch {
		case !there:
		case documents[column]:
		case numbers[column]:
			read := integer
			if name == "timestamp" || name == "deadline" {
				read = milliseconds
			}
			n, code := read(marshal(v))
			if code == "" && (name != "timestamp" || plausible(n)) {
				o[name] = number(n)
			}
			if notNull[column] && name != "timestamp" && o[name] == number(0) {
				delete(o, name)
			}
		default:
			if n, ok := v.(json.Number); ok {
				o[name] = n.String()
			}
		}
		if isMissing(o[name], column) {
			delete(o, name)
		}
	}
}

func isMissing(v any, column string) bool {
	if documents[column] {
		object, isObject := v.(map[string]any)
		return v == nil || isObject && len(object) == 0
	}
	return v == nil || v == "" && !numbers[column]
}

func plausible(ms int64) bool {
	t := time.UnixMilli(ms)
	return !t.Before(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) && t.Before(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC))
}

func number(n int64) json.Number { return json.Number(strconv.FormatInt(n, 10)) }

// Queried returns the record that a row of flow.records was made from, in the
// form of Posted. The row may come from RowOf, from a query over the native
// protocol, or from one in a JSON format, by the names of the columns; columns
// it does not need are ignored. The error says what cannot be.
func Queried(row map[string]any) (map[string]any, error) {
	outer, value := map[string]any{}, map[string]any{}
	if extra, _ := row["extra"].(string); extra != "" {
		for name, v := range tree([]byte(extra)).(map[string]any) {
			if name == "_record" {
				maps.Copy(outer, v.(map[string]any))
			} else {
				value[unescaped(name)] = v
			}
		}
	}
	if err := fill(outer, outerColumns, row); err != nil {
		return nil, err
	}
	if err := fill(value, valueColumns, row); err != nil {
		return nil, err
	}
	if len(value) > 0 {
		outer["value"] = value
	}
	return outer, nil
}

// fill puts the members that have columns into o, which holds those in extra.
func fill(o map[string]any, columns map[string]string, row map[string]any) error {
	for name, column := range columns {
		cell, there := row[column]
		if !there {
			return fmt.Errorf("the row has no column %s", column)
		}
		v, err := member(cell, column)
		if err != nil {
			return fmt.Errorf("column %s: %w", column, err)
		}
		_, inExtra := o[name]
		switch {
		case isMissing(v, column) || notNull[column] && v == number(0):
		case inExtra && (name == "partitionId" || name == "position"): // the column is what the id says
		case inExtra:
			return fmt.Errorf("%s is in column %s and in extra", name, column)
		default:
			o[name] = v
		}
	}
	return nil
}

// member returns what a cell says, as JSON would.
func member(cell any, column string) (any, error) {
	v := reflect.ValueOf(cell)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	switch {
	case !v.IsValid() || v.Kind() == reflect.Pointer:
		return nil, nil
	case v.Type() == reflect.TypeFor[time.Time]():
		return number(v.Interface().(time.Time).UnixMilli()), nil
	case v.CanInt():
		return number(v.Int()), nil
	case v.CanUint():
		return json.Number(strconv.FormatUint(v.Uint(), 10)), nil
	case v.Kind() != reflect.String:
		return nil, fmt.Errorf("a %T is not expected", cell)
	}
	s := v.String()
	switch {
	case documents[column]:
		return tree([]byte(s)), nil
	case column == "ts":
		t, err := time.Parse(time.DateTime, s)
		return number(t.UnixMilli()), err
	case numbers[column] && s == "": // a key that is text in the view
		return nil, nil
	case numbers[column]:
		n, err := strconv.ParseInt(s, 10, 64)
		return number(n), err
	}
	return s, nil
}
