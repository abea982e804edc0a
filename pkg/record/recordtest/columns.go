package recordtest

import (
	"reflect"
	"strings"

	"sluice/pkg/record"
)

// column is a column that holds a member unchanged, whatever its type: text or a whole number.
type column struct {
	name, member   string
	value, integer bool // of the record's value; a number
}

// plainColumns are those in the tags of record.Columns.
var plainColumns = func() (all []column) {
	of := reflect.TypeFor[record.Columns]()
	for i := range of.NumField() {
		member, is := of.Field(i).Tag.Lookup("member")
		if !is {
			continue
		}
		c := column{name: of.Field(i).Tag.Get("column"), integer: of.Field(i).Type == reflect.TypeFor[record.NullInt64]()}
		c.member, c.value = strings.CutPrefix(member, "value.")
		all = append(all, c)
	}
	return all
}()

// RowOf returns row i of a block by the column names of flow.records: string, int64, or nil for NULL. id and
// source_record_position are as queries show them. Columns of its place are left out.
func RowOf(c *record.Columns, i int) map[string]any {
	row := map[string]any{"kind": int64(c.Kind[i]), "id": c.ID(i)}
	for _, column := range c.All() {
		switch data := column.Data.(type) {
		case *record.LowCardinality:
			row[column.Name] = string(data.Value(i))
		case *record.StringColumn:
			row[column.Name] = string(data.Value(i))
		case *record.NullInt64:
			row[column.Name] = nil
			if data.Nulls[i] == 0 {
				row[column.Name] = data.Value(i)
			}
		case *[]int64:
			row[column.Name] = (*data)[i]
		}
	}
	source := row["source_record_offset"]
	if source != nil {
		source = source.(int64) + c.Position[i]
	}
	row["source_record_position"] = source
	delete(row, "source_record_offset")
	delete(row, "received_at")
	return row
}
