package warehouse

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// Known calls found for every stored row that may be the same record as one of the rows of c, and for some more: rows
// of the same days, sources, and types that share a position, a content hash, or a place. It skips rows stored up to
// the expiry line, whether or not they are merged away.
//
// It is one statement, which reads only the days of the rows, less what the index of times and positions skips. It uses
// ch-go: a block that was resent as a whole has a result of a hundred thousand rows.
func (db *DB) Known(ctx context.Context, c *record.Columns, rows []int, line string, found func(*flow.Identity)) error {
	var positions, contents []int
	for _, row := range rows {
		if c.Kind[row] == flow.ByPosition {
			positions = append(positions, row)
		} else {
			contents = append(contents, row)
		}
	}
	var selects []string
	if len(positions) > 0 {
		selects = append(selects, db.selectKnown(byPosition(c, positions), line))
	}
	if len(contents) > 0 {
		selects = append(selects, db.selectKnown(byContent(c, contents), line))
	}
	if len(selects) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, db.cfg.QueryTimeout)
	defer cancel()
	var answer knownColumns
	err := db.send(ctx, ch.Query{
		Body:     strings.Join(selects, " UNION ALL "),
		Settings: db.lookupSettings(),
		Result:   answer.columns(),
		OnResult: func(_ context.Context, block proto.Block) error {
			answer.each(block.Rows, found)
			return nil
		},
	})
	if err != nil {
		return storeError("look up known records", err)
	}
	return nil
}

func (db *DB) selectKnown(where conditions, line string) string {
	return fmt.Sprintf(`SELECT source, identity, own_id AS id, partition_id, position, toUnixTimestamp64Milli(ts) AS ms, key, record_type, value_type, intent
		FROM %s WHERE %s AND %s`, db.onReplicas("records"), where, storedAfter(line))
}

// byPosition selects rows by the positions of rows identified by position.
func byPosition(c *record.Columns, rows []int) conditions {
	var where conditions
	where.when(c, rows)
	sources, partitions := map[int]bool{}, map[int64]bool{}
	first, last := c.Position[rows[0]], c.Position[rows[0]]
	var list []byte
	for i, row := range rows {
		position := c.Position[row]
		first, last = min(first, position), max(last, position)
		sources[c.Source.Key(row)] = true
		partitions[c.PartitionID[row]] = true
		if i > 0 {
			list = append(list, ',')
		}
		list = strconv.AppendInt(list, position, 10)
	}
	where.in("source", symbols(&c.Source, sources))
	where.in("partition_id", numbers(partitions))
	where.add("identity = ''")
	// The range is for the index. The list is one literal: ClickHouse parses a hundred
	// thousand literals ten times as slowly.
	where.add("position BETWEEN %d AND %d", first, last)
	where.add("position IN (SELECT toInt64(arrayJoin(splitByChar(',', '%s'))))", list)
	return where
}

// byContent selects rows by the content hashes or places of rows identified by them. Equal records
// have equal processes and instances, by which the primary key selects even without a time.
func byContent(c *record.Columns, rows []int) conditions {
	var where conditions
	where.when(c, rows)
	sources := map[int]bool{}
	var list []byte
	processes, instances := map[int]bool{}, map[string]bool{}
	for i, row := range rows {
		sources[c.Source.Key(row)] = true
		if i > 0 {
			list = append(list, ',')
		}
		list = hex.AppendEncode(list, c.Identity.Value(row))
		processes[c.BpmnProcessID.Key(row)] = true
		if len(instances) <= maxListed {
			instances[string(c.ProcessInstanceKey.Value(row))] = true
		}
	}
	where.in("source", symbols(&c.Source, sources))
	where.in("bpmn_process_id", symbols(&c.BpmnProcessID, processes))
	if len(instances) <= maxListed {
		var all []string
		for instance := range instances {
			all = append(all, quote(instance))
		}
		where.in("process_instance_key", all)
	}
	where.add("identity IN (SELECT unhex(arrayJoin(splitByChar(',', '%s'))))", list)
	return where
}

// lookupSettings are the settings of lookups that decide what is stored.
func (db *DB) lookupSettings() []ch.Setting {
	all := []ch.Setting{{Key: "max_query_size", Value: "268435456", Important: true}} // the statement contains the list of a block
	if db.cfg.Cluster != "" {
		all = append(all, ch.Setting{Key: "distributed_group_by_no_merge", Value: "1", Important: true},
			ch.Setting{Key: "optimize_const_name_size", Value: "-1"}) // sends the list to shards within the statement, which older servers require
	}
	return all
}

// knownColumns receive the result, block by block.
type knownColumns struct {
	source, recordType, valueType, intent dictionary
	identity, ownID                       proto.ColStr
	partition, position, ts, key          proto.ColInt64
}

func (k *knownColumns) columns() proto.Results {
	return proto.Results{
		{Name: "source", Data: k.source.column()},
		{Name: "identity", Data: &k.identity},
		{Name: "id", Data: &k.ownID},
		{Name: "partition_id", Data: &k.partition},
		{Name: "position", Data: &k.position},
		{Name: "ms", Data: &k.ts},
		{Name: "key", Data: &k.key},
		{Name: "record_type", Data: k.recordType.column()},
		{Name: "value_type", Data: k.valueType.column()},
		{Name: "intent", Data: k.intent.column()},
	}
}

func (k *knownColumns) each(rows int, found func(*flow.Identity)) {
	dictionaries := [...]*dictionary{&k.source, &k.recordType, &k.valueType, &k.intent}
	if rows > 0 {
		for _, d := range dictionaries {
			d.read()
		}
	}
	var one flow.Identity
	for i := range rows {
		one = flow.Identity{
			Source: k.source.row(i), Content: k.identity.Row(i), OwnID: k.ownID.Row(i),
			PartitionID: k.partition[i], Position: k.position[i], TS: k.ts[i], Key: k.key[i],
			RecordType: k.recordType.row(i), ValueType: k.valueType.row(i), Intent: k.intent.row(i),
		}
		found(&one)
	}
}

// dictionary is a LowCardinality(String) column of a result: each value becomes a string once, not per
// row.
type dictionary struct {
	raw    *proto.ColLowCardinalityRaw
	values []string
}

func (d *dictionary) column() *proto.ColLowCardinalityRaw {
	d.raw = &proto.ColLowCardinalityRaw{Index: new(proto.ColStr)}
	return d.raw
}

func (d *dictionary) read() {
	index := d.raw.Index.(*proto.ColStr)
	d.values = d.values[:0]
	for i := range index.Rows() {
		d.values = append(d.values, index.Row(i))
	}
}

func (d *dictionary) row(i int) string {
	switch d.raw.Key {
	case proto.KeyUInt16:
		return d.values[d.raw.Keys16[i]]
	case proto.KeyUInt32:
		return d.values[d.raw.Keys32[i]]
	case proto.KeyUInt64:
		return d.values[d.raw.Keys64[i]]
	}
	return d.values[d.raw.Keys8[i]]
}

// maxListed bounds a list of values in a statement. A longer one is omitted: parsing it takes longer
// than it saves.
const maxListed = 1000

// conditions are the conditions of a WHERE.
type conditions []string

func (c conditions) String() string { return strings.Join(c, " AND ") }

func (c *conditions) add(format string, args ...any) {
	*c = append(*c, fmt.Sprintf(format, args...))
}

// in adds that a column has one of these values, sorted SQL literals.
func (c *conditions) in(column string, values []string) {
	if len(values) <= maxListed {
		c.add("%s IN (%s)", column, strings.Join(values, ", "))
	}
}

// when limits the rows to the days and types of those rows of c, by which the primary key and the
// partitions are pruned.
func (c *conditions) when(columns *record.Columns, rows []int) {
	days := map[int64]bool{}
	types := map[int]bool{}
	first, last := columns.TS[rows[0]], columns.TS[rows[0]]
	for _, row := range rows {
		ts := columns.TS[row]
		first, last = min(first, ts), max(last, ts)
		days[flow.Day(ts)] = true
		types[columns.ValueType.Key(row)] = true
	}
	c.in("toDate(ts)", dates(days))
	c.add("ts BETWEEN fromUnixTimestamp64Milli(%d, 'UTC') AND fromUnixTimestamp64Milli(%d, 'UTC')", first, last)
	c.in("value_type", symbols(&columns.ValueType, types))
}

// dates are days as SQL literals.
func dates(days map[int64]bool) []string {
	var all []string
	for _, day := range slices.Sorted(maps.Keys(days)) {
		all = append(all, date(day))
	}
	return all
}

func date(day int64) string {
	return quote(time.Unix(day*24*60*60, 0).UTC().Format(time.DateOnly))
}

// symbols are values of a column, by key, as SQL literals.
func symbols(column *record.LowCardinality, keys map[int]bool) []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		all = append(all, quote(string(column.Values.Value(key))))
	}
	return all
}

// numbers are integers as SQL literals.
func numbers(values map[int64]bool) []string {
	var all []string
	for _, v := range slices.Sorted(maps.Keys(values)) {
		all = append(all, strconv.FormatInt(v, 10))
	}
	return all
}

// quote is a text as an SQL literal.
func quote(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(text) + "'"
}

// numbersOf are the rows from to to-1.
func numbersOf(from, to int) []int {
	rows := make([]int, 0, to-from)
	for row := from; row < to; row++ {
		rows = append(rows, row)
	}
	return rows
}
