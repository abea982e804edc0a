package schema

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Window is how many inserts a table remembers: an insert that is repeated within so many
// parts of the same table is recognized by its token. It bounds how long one block may
// stay in doubt while others are stored.
const Window = 100_000

// Server is what the schema is made for: the data of the templates.
type Server struct {
	Database string   // holds everything
	Cluster  string   // as in remote_servers; empty for a single server
	Single   bool     // every shard of it is one server: nothing is replicated, and there is no Keeper
	Shards   int      // of the cluster, when the tables were made
	Version  Version  // of ClickHouse
	Settings []string // of Writing, that it knows
	Checks   string   // the SELECT of v_lint, over the database flow
}

// Table names the table that holds the rows on each server. In a cluster the plain name
// belongs to the Distributed table that covers all of them.
func (s Server) Table(name string) string {
	if s.Cluster != "" {
		name += "_local"
	}
	return s.Database + "." + name
}

// OnCluster makes a statement run on every server, which takes Keeper; without one it is
// sent to each.
func (s Server) OnCluster() string {
	if !s.Replicated() {
		return ""
	}
	return " ON CLUSTER '" + s.Cluster + "'"
}

// Replicated reports whether every row is on more than one server.
func (s Server) Replicated() bool { return s.Cluster != "" && !s.Single }

// CreateTable begins a table whose rows are divided among the shards.
func (s Server) CreateTable(name string) string {
	return "CREATE TABLE IF NOT EXISTS " + s.Table(name) + s.OnCluster()
}

// CreateEverywhere begins a table whose rows are on every server.
func (s Server) CreateEverywhere(name string) string {
	return "CREATE TABLE IF NOT EXISTS " + s.Database + "." + name + s.OnCluster()
}

// CreateFeed begins the materialized view that feeds a table.
func (s Server) CreateFeed(table string) string {
	return fmt.Sprintf("CREATE MATERIALIZED VIEW IF NOT EXISTS %s.%s_mv%s TO %s", s.Database, table, s.OnCluster(), s.Table(table))
}

// CreateView begins a view.
func (s Server) CreateView(name string) string {
	return "CREATE VIEW IF NOT EXISTS " + s.Database + "." + name + s.OnCluster()
}

// Lint is the SELECT of v_lint.
func (s Server) Lint() string { return strings.ReplaceAll(s.Checks, "flow.", s.Database+".") }

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

// Distributed is the statement that makes the table over all shards, where there are any.
// An instance stays on one shard, so that aggregate tables and FINAL are right on each by
// itself. The key is modulo the number of shards that there were at first: one that is
// added later gets nothing, and neither an instance nor a block that is sent again is
// ever divided in two ways.
func (s Server) Distributed(table, shardBy string) string {
	if s.Cluster == "" {
		return ""
	}
	return fmt.Sprintf("\nCREATE TABLE IF NOT EXISTS %s.%s%s AS %s\nENGINE = Distributed('%s', '%s', '%s_local', %s %% %d);",
		s.Database, table, s.OnCluster(), s.Table(table), s.Cluster, s.Database, table, shardBy, s.Shards)
}

// Deduplicated are the settings that make a table remember its inserts. Both are explicit:
// the defaults are off on a single server, and have changed between versions on
// replicated tables.
func (s Server) Deduplicated() string {
	if !s.Replicated() {
		return fmt.Sprintf("non_replicated_deduplication_window = %d", Window)
	}
	return fmt.Sprintf("replicated_deduplication_window = %d, replicated_deduplication_window_seconds = 604800", Window)
}

// Durable are the settings that make an insert survive a power cut.
func (Server) Durable() string { return "fsync_after_insert = 1, fsync_part_directory = 1" }

// Writing are how inserts and merges write, of the settings that not every version has
// (docs/decisions/0014-cost-of-the-table.md).
var Writing = map[string]int{
	// Merges wait for ten parts of about the same size. Left to itself the server joins few
	// parts at a time, so that a row is written again and again; ten at once leave a few
	// tens of parts and a third less work.
	"merge_selector_base":        10,
	"min_parts_to_merge_at_once": 10,

	// An insert writes all columns to one file, and the first merge each to its own: a
	// hundred files less to make and to sync for every block.
	"min_level_for_wide_part": 1,
}

// TableSettings are those of every table that records end up in: it remembers its inserts,
// they survive a power cut, and little is written twice.
func (s Server) TableSettings() string {
	all := []string{s.Deduplicated(), s.Durable()}
	for _, name := range slices.Sorted(maps.Keys(Writing)) {
		if slices.Contains(s.Settings, name) {
			all = append(all, fmt.Sprintf("%s = %d", name, Writing[name]))
		}
	}
	if s.Version.AtLeast(26, 4) {
		// Newer servers keep statistics of every column, made anew at each insert and each
		// merge, for plans of joins that are never made here.
		all = append(all, "auto_statistics_types = ''")
	}
	return strings.Join(all, ", ")
}

// Order is a text by which records of one key sort as their engine wrote them: time in ms
// since 1970, then position. A record without a time comes first.
func (Server) Order() string {
	return "concat(leftPad(toString(toUnixTimestamp64Milli(r.ts)), 15, '0'), leftPad(toString(greatest(r.position, 0)), 20, '0'))"
}

// Begun sorts instances by when they began, whichever partition of the engine runs them: a
// key is the partition, then a number that only grows. Keys that are no numbers come
// first. Rows of one time are adjacent so, and apart from all that is older, which FINAL
// then has nothing to merge with; and an index of a time skips all other times. The text
// itself follows it, and not in the primary key, or a lookup would bind to the text alone.
func (Server) Begun() string {
	return "bitAnd(toInt64OrZero(process_instance_key), 2251799813685247)" // 2^51 - 1
}

// Mark is a number that tells one record from another in a set of them: its position where
// that is its identity, else a hash of its identity.
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

// Oldest is the first version whose inserts are deduplicated through materialized views in
// the way that inserting relies on.
var Oldest = Version{24, 8}
