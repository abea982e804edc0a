// Package dialect is the SQL of the schema for one server and for a cluster, for old and
// new versions of ClickHouse: migrations are templates, whose data is a Dialect.
package dialect

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"
)

// Window is how many inserts a table remembers: an insert that is repeated
// within so many parts of the same table is recognised by its token. It bounds
// how long one block may stay in doubt while others are stored.
const Window = 100_000

// Dialect is the data of the migration templates: the same source gives the
// schema of one server and that of a cluster, for old and new versions.
type Dialect struct {
	Database string  // holds everything
	Cluster  string  // as in remote_servers; empty for a single server
	Single   bool    // every shard of it is one server: nothing is replicated, and there is no Keeper
	Shards   int     // of the cluster, when the tables were made
	Version  Version // of the server

	// Settings are those of tables that the server knows, of the ones that not
	// every version has.
	Settings []string
}

// Table names the table that holds the rows on each server. In a cluster the
// plain name belongs to the Distributed table that covers all of them.
func (d Dialect) Table(name string) string {
	if d.Cluster != "" {
		name += "_local"
	}
	return d.Database + "." + name
}

// OnCluster makes a statement run on every server, which takes Keeper; without
// one it is sent to each.
func (d Dialect) OnCluster() string {
	if !d.Replicated() {
		return ""
	}
	return " ON CLUSTER '" + d.Cluster + "'"
}

// Replicated says whether every row is on more than one server.
func (d Dialect) Replicated() bool { return d.Cluster != "" && !d.Single }

// Engine is a table engine whose rows are divided among the shards.
func (d Dialect) Engine(kind, table string) string {
	if !d.Replicated() {
		return kind
	}
	return fmt.Sprintf("Replicated%s('/clickhouse/tables/{shard}/%s/%s', '{replica}')", kind, d.Database, table)
}

// EngineEverywhere is a table engine whose rows are on every server.
func (d Dialect) EngineEverywhere(kind, table string) string {
	if !d.Replicated() {
		return kind // an insert goes to each server
	}
	return fmt.Sprintf("Replicated%s('/clickhouse/tables/all/%s/%s', '{shard}-{replica}')", kind, d.Database, table)
}

// Distributed is the statement that makes the table over all shards, where
// there are any. An instance stays on one shard, so that folds and FINAL are
// right on each by itself. Migration 0020 makes it again, Divided.
func (d Dialect) Distributed(table, shardBy string) string {
	if d.Cluster == "" {
		return ""
	}
	return fmt.Sprintf("\nCREATE TABLE IF NOT EXISTS %s.%s%s AS %s\nENGINE = Distributed('%s', '%s', '%s_local', %s);",
		d.Database, table, d.OnCluster(), d.Table(table), d.Cluster, d.Database, table, shardBy)
}

// Divided is Distributed with a key modulo the number of shards that there were at
// first: one that is added later gets nothing, and neither an instance nor a block
// that is sent again is ever divided in two ways.
func (d Dialect) Divided(table, shardBy string) string {
	return fmt.Sprintf("CREATE OR REPLACE TABLE %s.%s%s AS %s\nENGINE = Distributed('%s', '%s', '%s_local', %s %% %d);",
		d.Database, table, d.OnCluster(), d.Table(table), d.Cluster, d.Database, table, shardBy, d.Shards)
}

// Deduplicated are the settings that make a table remember its inserts. Both
// are explicit: the defaults are off on a single server, and have changed
// between versions on replicated tables.
func (d Dialect) Deduplicated() string {
	if !d.Replicated() {
		return fmt.Sprintf("non_replicated_deduplication_window = %d", Window)
	}
	return fmt.Sprintf("replicated_deduplication_window = %d, replicated_deduplication_window_seconds = 604800", Window)
}

// Durable are the settings that make an insert survive a power cut.
func (Dialect) Durable() string { return "fsync_after_insert = 1, fsync_part_directory = 1" }

// WritingSettings are how inserts and merges write, of the settings that not
// every version has (docs/decisions/0027-merges-of-ten.md, 0037-what-the-table-costs.md).
var WritingSettings = map[string]int{
	// Merges wait for ten parts of about the same size. Left to itself the
	// server joins few parts at a time, so that a row is written again and again;
	// ten at once leave a few tens of parts and a third less work.
	"merge_selector_base":        10,
	"min_parts_to_merge_at_once": 10,

	// An insert writes all columns to one file, and the first merge each to its
	// own: a hundred files less to make and to sync for every block.
	"min_level_for_wide_part": 1,
}

// TableSettings are those of every table that records end up in: it remembers
// its inserts, they survive a power cut, and little is written twice.
func (d Dialect) TableSettings() string {
	all := []string{d.Deduplicated(), d.Durable()}
	for _, name := range slices.Sorted(maps.Keys(WritingSettings)) {
		if slices.Contains(d.Settings, name) {
			all = append(all, fmt.Sprintf("%s = %d", name, WritingSettings[name]))
		}
	}
	if d.Version.AtLeast(26, 4) {
		// Newer servers keep statistics of every column, made anew at each
		// insert and each merge, for plans of joins that are never made here.
		all = append(all, "auto_statistics_types = ''")
	}
	return strings.Join(all, ", ")
}

// Order is a text by which records of one key sort as their engine wrote them:
// time in ms since 1970, then position. A record without a time comes first.
func (d Dialect) Order() string { return d.OrderOf("toUnixTimestamp64Milli(r.ts)", "r.position") }

// OrderOf is the same text of a time and a position.
func (Dialect) OrderOf(ms, position string) string {
	return fmt.Sprintf("concat(leftPad(toString(%s), 15, '0'), leftPad(toString(greatest(%s, 0)), 20, '0'))", ms, position)
}

// Begun sorts instances by when they began, whichever partition of the engine
// runs them: a key is the partition, then a number that only grows. Keys that are
// no numbers come first. Rows of one time lie together so, and apart from all that
// is older, which FINAL then has nothing to merge with; and an index of a time
// passes over all other times. The text itself stands behind it, and not in the
// primary key, or a look-up would bind to the text alone.
func (Dialect) Begun() string {
	return "bitAnd(toInt64OrZero(process_instance_key), 2251799813685247)" // 2^51 - 1
}

// Moved finds rows of process_instances as it was until migration 0021, one at least of
// each instance whose events name more than one process: the row of a process that it
// was migrated to lacks its beginning. So do rows of a migration to another version that
// are not merged yet, which does no harm.
func (Dialect) Moved() string {
	return "migrated != '' AND began = '' OR bpmn_process_id = ''"
}

// MovedInstances asks for the instances whose events name more than one process: a row
// of them names these, or, as long as it is not merged, a migration and no beginning.
func (d Dialect) MovedInstances() string {
	return fmt.Sprintf("SELECT source, process_instance_key FROM %s.instances WHERE length(processes) > 1 OR migrated != '' AND began = '' OR processes = ['']", d.Database)
}

// Mark is a number that tells one record from another in a set of them: its
// position where that is its identity, else a hash of its identity.
func (Dialect) Mark() string {
	return "if(r.identity = '', r.position, reinterpretAsInt64(cityHash64(r.identity)))"
}

// TextIndex is the index for words in a text.
func (d Dialect) TextIndex() string {
	if d.Version.AtLeast(26, 2) {
		return "text(tokenizer = splitByNonAlpha) GRANULARITY 100000000"
	}
	return "tokenbf_v1(16384, 3, 0) GRANULARITY 4"
}

// Statements renders a migration and splits it. A statement ends with a
// semicolon at the end of a line.
func (d Dialect) Statements(name, source string) ([]string, error) {
	t, err := template.New(name).Option("missingkey=error").Parse(source)
	if err != nil {
		return nil, fmt.Errorf("parse migration %s: %w", name, err)
	}
	var b strings.Builder
	if err := t.Execute(&b, d); err != nil {
		return nil, fmt.Errorf("render migration %s: %w", name, err)
	}
	var all []string
	for s := range strings.SplitSeq(b.String()+"\n", ";\n") {
		if s = withoutComments(s); s != "" {
			all = append(all, s)
		}
	}
	return all, nil
}

// withoutComments drops comments that have their own line.
func withoutComments(sql string) string {
	var b strings.Builder
	for line := range strings.Lines(sql) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			b.WriteString(line)
		}
	}
	return strings.TrimSpace(b.String())
}

// Version is that of a server: year and month of its release.
type Version struct{ Major, Minor int }

func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Oldest is the first version whose inserts are deduplicated through
// materialized views in the way that inserting relies on.
var Oldest = Version{24, 8}
