package schema

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Window is the deduplication window of a table, in inserts: a repeat within as many parts of the table is recognized
// by its token. It bounds how long a block may stay in doubt while others are stored.
const Window = 100_000

// Server is the target of a schema: the data of the templates.
type Server struct {
	Database string   // of all tables
	Cluster  string   // as in remote_servers; empty for a single server
	Single   bool     // every shard is one server: no replication and no Keeper
	Shards   int      // of the cluster when the tables were created
	Version  Version  // of ClickHouse
	Settings []string // those of Writing that the server has
	Checks   string   // the SELECT of v_lint, over the database flow

	BusinessKey string // variable that has the business key of an instance; empty: none
}

// Table is the name of the table with the rows on each server. In a cluster the plain name is the Distributed table
// over all servers.
func (s Server) Table(name string) string {
	if s.Cluster != "" {
		name += "_local"
	}
	return s.Database + "." + name
}

// OnCluster is the clause that runs a statement on every server, by Keeper; empty without one: the statement is sent to
// each server.
func (s Server) OnCluster() string {
	if !s.Replicated() {
		return ""
	}
	return " ON CLUSTER '" + s.Cluster + "'"
}

// Replicated reports whether every row is on more than one server.
func (s Server) Replicated() bool { return s.Cluster != "" && !s.Single }

// statements create an object: a view; or a table, its Distributed table, and the materialized view that feeds it.
func (s Server) statements(o *object) []string {
	if o.verb == "VIEW" {
		return []string{s.view(o)}
	}
	name, engine := s.Table(o.name), s.Engine
	if o.verb == "EVERYWHERE" {
		name, engine = s.Database+"."+o.name, s.EngineEverywhere
	}
	all := []string{s.table(o, name, engine)}
	if s.Cluster != "" && o.verb == "TABLE" {
		// An instance stays on one shard, so that aggregate tables and FINAL are correct on each shard alone. The
		// modulus is the original number of shards: a shard added later gets no rows, and a resent block is always
		// divided in the same way.
		all = append(all, fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s.%s%s AS %s\nENGINE = Distributed('%s', '%s', '%s_local', cityHash64(%s) %% %d)",
			s.Database, o.name, s.OnCluster(), name, s.Cluster, s.Database, o.name, cmp.Or(o.clauses["SHARD BY"], "source, process_instance_key"), s.Shards))
	}
	if o.clauses["FEED"] != "" {
		all = append(all, s.feed(o))
	}
	return all
}

// table renders a table for a server. Without an ENGINE it is an aggregate table, sorted by its keys and by the start
// of the instance.
func (s Server) table(o *object, name string, engine func(kind, table string) string) string {
	var lines []string
	for _, c := range o.columns {
		kind := c.kind
		switch {
		case c.merge == "set":
			kind = "SimpleAggregateFunction(groupUniqArrayArray, " + kind + ")"
		case c.merge != "" && c.merge != "key":
			kind = "SimpleAggregateFunction(" + c.merge + ", " + kind + ")"
		}
		switch codec := c.codec; {
		case c.merge == "" && c.expr != "":
			kind += " ALIAS " + c.expr + " COMMENT " + quote(c.meaning)
		case codec == "" && (c.kind == "Int64" || strings.Contains(c.kind, "DateTime64")):
			codec = "Delta(8), T64('bit'), ZSTD(1)"
			fallthrough
		default:
			kind += " COMMENT " + quote(c.meaning) + " CODEC(" + cmp.Or(codec, "ZSTD(1)") + ")"
		}
		lines = append(lines, c.name+" "+kind)
	}
	for index := range strings.Lines(o.clauses["INDEX"]) {
		lines = append(lines, "INDEX "+strings.TrimSpace(index))
	}
	text := "CREATE TABLE IF NOT EXISTS " + name + s.OnCluster() + "\n(\n    " + strings.Join(lines, ",\n    ") + "\n)\nENGINE = " + engine(cmp.Or(o.clauses["ENGINE"], "AggregatingMergeTree"), o.name)
	order, primary := o.clauses["ORDER BY"], o.clauses["PRIMARY KEY"]
	if order == "" {
		keys := o.keys()
		if i := slices.Index(keys, "process_instance_key"); i >= 0 {
			keys = slices.Insert(keys, i, s.Begun())
			primary = strings.Join(keys[:i+1], ", ")
		}
		order = strings.Join(keys, ", ")
	}
	settings := s.TableSettings()
	if o.verb == "EVERYWHERE" {
		settings = s.Deduplicated() + ", " + s.Durable()
	}
	for _, clause := range [][3]string{{"PARTITION BY ", o.clauses["PARTITION BY"]}, {"PRIMARY KEY (", primary, ")"}, {"ORDER BY (", order, ")"}, {"TTL ", o.clauses["TTL"]}} {
		if clause[1] != "" {
			text += "\n" + clause[0] + clause[1] + clause[2]
		}
	}
	return text + "\nSETTINGS " + strings.TrimSuffix(settings+", "+o.clauses["SETTINGS"], ", ") + "\nCOMMENT " + quote(o.about)
}

// feed is the SELECT of the materialized view of an aggregate table, with its WITH.
func (s Server) feed(o *object) string {
	var selected []string
	for _, c := range o.columns {
		expr := cmp.Or(c.expr, "r."+c.name)
		if c.merge == "max" || c.merge == "min" {
			expr = c.merge + "(" + expr + ")"
		}
		selected = append(selected, expr+" AS "+c.name)
	}
	return fmt.Sprintf("CREATE MATERIALIZED VIEW IF NOT EXISTS %s.%s_mv%s TO %s AS\n%sSELECT %s\n%s\nGROUP BY %s", s.Database, o.name, s.OnCluster(), s.Table(o.name),
		with(o), strings.Join(selected, ",\n    "), strings.ReplaceAll("FROM "+o.clauses["FEED"], "flow.records", s.Table("records")), strings.Join(o.keys(), ", "))
}

func (s Server) view(o *object) string {
	var declared, selected []string
	for _, c := range o.columns {
		declared = append(declared, c.name+" "+c.kind+" COMMENT "+quote(c.meaning))
		if c.expr != c.name {
			c.name = c.expr + " AS " + c.name
		}
		selected = append(selected, c.name)
	}
	body := o.clauses["AS"]
	if body == "" {
		// Under FINAL, conditions on the sorting key alone are applied before rows are merged.
		body = with(o) + "SELECT " + strings.Join(selected, ",\n    ") + "\nFROM " + o.clauses["FROM"] + "\nSETTINGS optimize_move_to_prewhere_if_final = 1"
	}
	return "CREATE VIEW IF NOT EXISTS " + s.Database + "." + o.name + s.OnCluster() + "\n(\n    " + strings.Join(declared, ",\n    ") + "\n) AS\n" + body + "\nCOMMENT " + quote(o.about)
}

// with is the WITH clause of a SELECT. It has the few names as one value, computed whether used or not: a join would
// cost more for each row than all else.
func with(o *object) string {
	text := o.clauses["WITH"]
	if slices.ContainsFunc(o.columns, func(c column) bool { return strings.Contains(c.expr, "named.1") }) {
		text = strings.TrimPrefix(text+",\n    (SELECT (groupArray(concat(source, '\\t', bpmn_process_id, '\\t', element_id)), groupArray(name)) FROM flow.v_element_names) AS named", ",\n    ")
	}
	if text == "" {
		return ""
	}
	return "WITH " + text + "\n"
}

// merged is a table merged by GROUP BY, one row for each key: FINAL would not merge rows of a key on several shards, or
// of different processes.
func (s Server) merged(o *object, as, condition string) string {
	if !strings.Contains(condition, "p.") && s.Cluster == "" {
		return "flow." + o.name + " " + as + " FINAL WHERE " + condition
	}
	var columns []string
	keys := o.keys()
	for _, c := range o.columns {
		switch how := c.merge; {
		case slices.Contains(keys, c.name):
			columns = append(columns, c.name)
		case how == "set":
			columns = append(columns, "groupUniqArrayArray(p."+c.name+") AS "+c.name)
		default:
			columns = append(columns, how+"(p."+c.name+") AS "+c.name)
		}
	}
	where := "WHERE "
	if strings.Contains(condition, "GLOBAL IN") { // which the server does not move itself
		where = "PREWHERE "
	}
	return fmt.Sprintf("(SELECT %s FROM flow.%s AS p %s GROUP BY %s) %s", strings.Join(columns, ", "), o.name, where+condition, strings.Join(keys, ", "), as)
}

// Engine is a table engine whose rows are divided among the shards.
func (s Server) Engine(kind, table string) string {
	if !s.Replicated() {
		return kind
	}
	return fmt.Sprintf("Replicated%s('/clickhouse/tables/{shard}/%s/%s', '{replica}')", kind, s.Database, table)
}

// EngineEverywhere is a table engine whose rows are on every server.
func (s Server) EngineEverywhere(kind, table string) string {
	if !s.Replicated() {
		return kind // an insert goes to each server
	}
	return fmt.Sprintf("Replicated%s('/clickhouse/tables/all/%s/%s', '{shard}-{replica}')", kind, s.Database, table)
}

// Deduplicated are the settings of the deduplication window. Both are explicit: by default it is off on a single
// server, and its size on replicated tables depends on the version.
func (s Server) Deduplicated() string {
	if !s.Replicated() {
		return fmt.Sprintf("non_replicated_deduplication_window = %d", Window)
	}
	return fmt.Sprintf("replicated_deduplication_window = %d, replicated_deduplication_window_seconds = 604800", Window)
}

// Durable are the settings that make an insert survive a power cut.
func (Server) Durable() string { return "fsync_after_insert = 1, fsync_part_directory = 1" }

// Writing are settings of inserts and merges that not every version has (docs/decisions/0014-cost-of-the-table.md).
var Writing = map[string]int{
	// Merges wait for ten parts of about the same size. By default the server merges few parts at a time and so
	// rewrites a row often; ten at once leave a few tens of parts and a third less work.
	"merge_selector_base":        10,
	"min_parts_to_merge_at_once": 10,

	// An insert writes all columns to one file, and the first merge each to its own: a hundred files less to create and
	// sync for every block.
	"min_level_for_wide_part": 1,
}

// TableSettings are those of every table that records end up in: deduplicated and durable inserts, few rewrites.
func (s Server) TableSettings() string {
	all := []string{s.Deduplicated(), s.Durable()}
	for _, name := range slices.Sorted(maps.Keys(Writing)) {
		if slices.Contains(s.Settings, name) {
			all = append(all, fmt.Sprintf("%s = %d", name, Writing[name]))
		}
	}
	if s.Version.AtLeast(26, 4) {
		// Newer servers keep statistics of every column, recomputed at each insert and merge, for joins that are never
		// made here.
		all = append(all, "auto_statistics_types = ''")
	}
	return strings.Join(all, ", ")
}

// Order is a text that sorts records of one key as their engine wrote them: time in ms since 1970, then position.
// Records without a time come first.
func (Server) Order() string {
	return "concat(leftPad(toString(toUnixTimestamp64Milli(r.ts)), 15, '0'), leftPad(toString(greatest(r.position, 0)), 20, '0'))"
}

// Begun sorts instances by start, whichever partition of the engine runs them: a key is the partition, then a number
// that only grows. Keys that are not numbers come first. Rows of one time are adjacent, so that FINAL has no older rows
// to merge with, and an index on time skips all other times. The key as text follows it, outside the primary key, or a
// lookup would use the text alone.
func (Server) Begun() string {
	return "bitAnd(toInt64OrZero(process_instance_key), 2251799813685247)" // 2^51 - 1
}

// At is the time of a record; NULL if it has no valid one.
func (Server) At() string { return "if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL)" }

// Last is the process or scope of an instance or element since its last migration: order and these columns, separated
// by tabs.
func (s Server) Last(intent string, columns ...string) string {
	text := s.Order()
	for _, c := range columns {
		switch {
		case c == "version" || c == "process_definition_key":
			c = "toString(ifNull(r." + c + ", 0))"
		case !strings.Contains(c, "."):
			c = "toString(r." + c + ")"
		}
		text += ", '\t', " + c
	}
	return "if(r.intent = '" + intent + "', concat(" + text + "), '')"
}

// Callers are called instances, each with the one that called it.
func (Server) Callers() string {
	return `callers AS
    (
        SELECT source, process_instance_key, toString(assumeNotNull(max(c.parent_process_instance_key))) AS caller
        FROM flow.process_instances AS c WHERE c.parent_process_instance_key > 0 GROUP BY source, process_instance_key
    )`
}

// Roots are called instances, each with the bits in which the key of its root differs from its own.
func (Server) Roots() string {
	return "(SELECT source, process_instance_key, arrayJoin(bitPositionsToArray(bitXor(toUInt64OrZero(process_instance_key), toUInt64OrZero(root_process_instance_key)))) FROM flow.v_called_instances)"
}

// Below are instances with open incidents, each with 64 and the bits of the number of those below it.
func (Server) Below() string {
	return "(SELECT source, process_instance_key, arrayJoin(arrayPushBack(bitPositionsToArray(below), 64)) FROM flow.v_incidents_below)"
}

// Bits is the number of an instance that a subquery returns as bits.
func (Server) Bits(of string) string {
	return "arraySum(b -> bitShiftLeft(toUInt64((source, process_instance_key, b) GLOBAL IN " + of + "), b), range(64))"
}

// OfBusinessKey is a condition for the records of the business key variable.
func (s Server) OfBusinessKey() string {
	if s.BusinessKey == "" {
		return "0"
	}
	return "(r.value_type = 'VARIABLE' AND r.intent IN ('CREATED', 'UPDATED') AND toString(ifNull(r.scope_key, 0)) = r.process_instance_key AND JSONExtractString(r.extra, 'name') = " + quote(s.BusinessKey) + ")"
}

// Late is a condition for an instance that expired from the tables before a late record came: it has no start, and no
// event since the line of history.
func (Server) Late(started, last string) string {
	return fmt.Sprintf("(%s IS NULL AND %s < fromUnixTimestamp64Milli((SELECT max(value) FROM flow.history WHERE name = 'line'), 'UTC'))", started, last)
}

// Mark is a number that identifies a record within a set: its position if that is its deduplication key, else a hash of
// the key.
func (Server) Mark() string {
	return "if(r.identity = '', r.position, reinterpretAsInt64(cityHash64(r.identity)))"
}

// TextIndex is the index for words in a text.
func (s Server) TextIndex() string {
	if s.Version.AtLeast(26, 2) {
		return "text(tokenizer = splitByNonAlpha) GRANULARITY 100000000"
	}
	return "tokenbf_v1(16384, 3, 0) GRANULARITY 4"
}

// Version is that of a server: year and month of its release.
type Version struct{ Major, Minor int }

func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Oldest is the first version that deduplicates inserts through materialized views as Insert requires.
var Oldest = Version{24, 8}
