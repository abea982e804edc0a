package recordtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Row returns the columns of a record by name, in the order of flow.records: string, int64, or nil for NULL. Columns of
// its place are left out. The record passed Check.
func Row(raw []byte) map[string]any {
	outer := decode(raw)
	value := decode(outer["value"])
	if value == nil {
		value = object{}
	}
	row := map[string]any{}
	rest, restOfValue := object{}, object{}
	for name, content := range outer {
		rest[name] = content
	}
	for name, content := range value {
		restOfValue[escaped(name)] = content
	}
	take := func(column string, from, rest object, name string, f func(json.RawMessage) (any, string)) bool {
		if !from.has(name) {
			delete(rest, name)
			return false
		}
		v, code := f(from[name])
		if code != "" {
			return false // stays in the rest
		}
		row[column] = v
		delete(rest, name)
		return true
	}

	row["id"] = ""
	take("id", outer, rest, "id", anyText)
	row["key"] = int64(0)
	take("key", outer, rest, "key", anyInteger)
	row["ts"] = int64(0)
	take("ts", outer, rest, "timestamp", func(raw json.RawMessage) (any, string) {
		ms, code := milliseconds(raw)
		if code == "" && !plausible(ms) {
			code = "absurd"
		}
		return ms, code
	})
	row["partition_id"], row["position"] = positionOf(row["id"].(string))
	take("partition_id", outer, rest, "partitionId", anyInteger)
	take("position", outer, rest, "position", anyInteger)
	identify(row, raw)
	row["source_record_position"] = nil
	take("source_record_position", outer, rest, "sourceRecordPosition", anyInteger)
	for _, c := range plainColumns {
		from, left, read := outer, rest, anyText
		if c.value {
			from, left = value, restOfValue
		}
		if row[c.name] = ""; c.integer {
			row[c.name], read = nil, anyInteger
		}
		take(c.name, from, left, c.member, read)
	}
	delete(rest, "value")

	row["version"], row["element_id"] = nil, ""
	take("version", value, restOfValue, "processDefinitionVersion", anyInteger)
	take("element_id", value, restOfValue, "elementId", anyText)
	row["deadline"] = nil
	take("deadline", value, restOfValue, "deadline", func(raw json.RawMessage) (any, string) {
		ms, code := milliseconds(raw)
		return ms, code
	})
	for column, name := range map[string]string{"variables": "variables", "custom_headers": "customHeaders"} {
		row[column] = "{}"
		take(column, value, restOfValue, name, func(raw json.RawMessage) (any, string) { return string(raw), "" })
	}
	if !value.has("version") || !value.has("processDefinitionVersion") {
		take("version", value, restOfValue, "version", anyInteger)
	}
	if !value.has("targetElementId") || !value.has("elementId") {
		take("element_id", value, restOfValue, "targetElementId", anyText)
	}

	if len(rest) > 0 {
		restOfValue["_record"] = marshal(rest)
	}
	row["extra"] = ""
	if len(restOfValue) > 0 {
		row["extra"] = string(marshal(restOfValue))
	}
	return row
}

func anyText(raw json.RawMessage) (any, string) {
	s, code := text(raw)
	return s, code
}

func anyInteger(raw json.RawMessage) (any, string) {
	n, code := integer(raw)
	return n, code
}

// Compare returns the columns of a row that differ from those of the record. The row is of flow.records or v_records,
// by column name, from a query in a JSON format. Columns of its place, and those without a member in the record, do not
// matter.
func Compare(raw []byte, row map[string]any) (wrong []string) {
	want := Row(raw)
	for _, column := range []string{"kind", "own_id", "identity"} {
		delete(want, column)
	}
	for column, v := range want {
		cell, there := row[column]
		if got, want := cellText(column, cell), cellText(column, v); !there || got != want {
			wrong = append(wrong, fmt.Sprintf("%s is %s, want %s", column, got, want))
		}
	}
	return wrong
}

// cellText is the text of a cell, the same for rows and for queries.
func cellText(column string, v any) string {
	s := fmt.Sprint(v)
	switch {
	case v == nil || s == "0" && (column == "key" || column == "partition_id" || column == "position"):
		return "" // missing, in a view
	case (column == "variables" || column == "custom_headers" || column == "extra") && s != "":
		return Canonical([]byte(s))
	}
	if at, err := time.Parse(time.DateTime, s); err == nil && (column == "ts" || column == "deadline") {
		return fmt.Sprint(at.UnixMilli())
	}
	return s
}

func plausible(ms int64) bool {
	t := time.UnixMilli(ms)
	return !t.Before(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) && t.Before(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC))
}

// marshal keeps the text of every number.
func marshal(v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

// tree decodes JSON and keeps the text of every number.
func tree(raw []byte) any {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		panic(err)
	}
	return v
}

// Canonical returns JSON with its members sorted and without white space.
func Canonical(raw []byte) string { return string(marshal(tree(raw))) }

var idShape = regexp.MustCompile(`^([0-9]{1,19})-([0-9]{1,19})$`)

func positionOf(id string) (partition, position int64) {
	parts := idShape.FindStringSubmatch(id)
	if parts == nil {
		return 0, 0
	}
	partition, code1 := integer(marshal(parts[1]))
	position, code2 := integer(marshal(parts[2]))
	if code1 != "" || code2 != "" {
		return 0, 0
	}
	return partition, position
}

// escaped distinguishes a member of value from the members of the record.
func escaped(name string) string {
	if strings.HasPrefix(name, "_") && strings.TrimLeft(name, "_") == "record" {
		return "_" + name
	}
	return name
}
