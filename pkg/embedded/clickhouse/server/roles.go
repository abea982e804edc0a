package server

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The engine has one user, default, in every session. A session's rights follow from the
// role set before its first statement, which the engine enforces; permit refuses SET ROLE.
//
// A role is the rights of a user.
type role string

const (
	roleAdmin    role = "admin"    // all rights inside the database
	roleIngester role = "ingester" // creates tables and views, and inserts
	roleAnalyst  role = "analyst"  // reads
	roleModeller role = "modeller" // reads, and creates tables and views in the database models
	roleConsole  role = "console"  // reads like the analyst, with its own slots
)

var everyRole = []role{roleAdmin, roleIngester, roleAnalyst, roleModeller, roleConsole}

// workloads mark the statements of roles whose total memory is limited: see boundReaders.
var workloads = map[role]string{roleAnalyst: "analysts", roleModeller: "analysts"}

// inDatabase are the table and database engines whose data stays in the folder.
const inDatabase = `AggregatingMergeTree Alias Atomic Buffer CoalescingMergeTree CollapsingMergeTree Dictionary
	EmbeddedRocksDB FuzzJSON GenerateRandom GraphiteMergeTree Join Log Loop MaterializedView Memory Merge MergeTree Null
	Ordinary ReplacingMergeTree Set StripeLog SummingMergeTree TimeSeries TinyLog VersionedCollapsingMergeTree View WindowView`

const (
	analystGrants  = `SELECT, SHOW, dictGet, CREATE TEMPORARY TABLE ON *.*` // the last is for table functions such as view()
	ingesterGrants = `SELECT, SHOW, dictGet, INSERT, ALTER, CREATE DATABASE, CREATE TABLE, CREATE VIEW, CREATE TEMPORARY TABLE,
		DROP TABLE, DROP VIEW, TRUNCATE, OPTIMIZE ON *.*`
	// A modeller creates objects in ModelsDatabase, and temporary tables, which are in memory.
	modellerGrants = `SELECT, SHOW, dictGet, CREATE TEMPORARY TABLE ON *.*`
	modelsGrants   = `INSERT, ALTER, CREATE DATABASE, CREATE TABLE, CREATE VIEW, DROP TABLE, DROP VIEW, TRUNCATE, OPTIMIZE ON ` + ModelsDatabase + `.*`
	adminGrants    = `SELECT, SHOW, dictGet, CHECK, INSERT, ALTER, CREATE DATABASE, CREATE TABLE, CREATE VIEW, CREATE FUNCTION,
		CREATE TEMPORARY VIEW, CREATE ARBITRARY TEMPORARY TABLE, DROP, UNDROP TABLE, TRUNCATE, OPTIMIZE, KILL QUERY, KILL TRANSACTION, SHOW ACCESS, SYSTEM, CREATE WORKLOAD, CREATE RESOURCE, DROP WORKLOAD, DROP RESOURCE,
		INTROSPECTION ON *.*`
)

// listing is the row policy of readers' listings of the database flow: its views and three
// tables. Objects that only feed views can be read, but are hidden from lists of tables and
// columns, so that no tool offers them.
func listing(column string) string {
	return fmt.Sprintf("<filter>hasAny(currentRoles(), ['%s', '%s']) OR database != 'flow' OR startsWith(%s, 'v_') OR %[3]s IN ('records', 'counts_1m', 'changes')</filter>",
		roleAdmin, roleIngester, column)
}

// grants are the grants of each role.
func grants(allowFiles bool) map[role][]string {
	admin, ingester, modeller := []string{adminGrants}, []string{ingesterGrants}, []string{modellerGrants, modelsGrants}
	for _, engine := range strings.Fields(inDatabase) {
		admin = append(admin, "TABLE ENGINE ON "+engine)
		ingester = append(ingester, "TABLE ENGINE ON "+engine)
		if isModelEngine(engine) {
			modeller = append(modeller, "TABLE ENGINE ON "+engine)
		}
	}
	if allowFiles {
		admin = []string{"ALL ON *.*"}
	}
	return map[role][]string{roleAdmin: admin, roleIngester: ingester, roleAnalyst: {analystGrants}, roleConsole: {analystGrants}, roleModeller: modeller}
}

// settings are the limits as settings of ClickHouse.
func (l Limits) settings() map[string]string {
	return map[string]string{
		"max_memory_usage":                          strconv.FormatInt(l.Memory, 10),
		"max_execution_time":                        strconv.FormatInt(max(1, int64(l.Time/time.Second)), 10),
		"max_result_rows":                           strconv.FormatInt(l.Rows, 10),
		"max_temporary_data_on_disk_size_for_query": strconv.FormatInt(l.Memory, 10),
	}
}

// limits are the maximum settings of limited roles.
func (c Config) limits() map[role]map[string]string {
	return map[role]map[string]string{roleAnalyst: c.Analyst.settings(), roleConsole: c.Analyst.settings(), roleModeller: c.Modeller.settings()}
}

// constants are settings that no client may change, since statements are inspected in
// ClickHouse's dialect.
var constants = []string{"dialect", "allow_experimental_eval_table_function"}

// writeEngineConfig writes the engine's configuration, which is read at start, and returns
// its file. Naming one also keeps the engine from reading a config.xml in the working folder.
func writeEngineConfig(cfg Config) (string, error) {
	folder := filepath.Join(cfg.Data, "engine")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", fmt.Errorf("write the engine's configuration: %w", err)
	}
	users := filepath.Join(folder, "users.xml")
	for file, content := range map[string]string{
		filepath.Join(folder, "config.xml"): "<clickhouse><users_config>" + xmlText(users) + "</users_config>" + clusterXML(cfg) + "</clickhouse>\n",
		users:                               usersXML(cfg),
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			return "", fmt.Errorf("write the engine's configuration: %w", err)
		}
	}
	return filepath.Join(folder, "config.xml"), nil
}

func usersXML(cfg Config) string {
	var b strings.Builder
	b.WriteString("<clickhouse>\n<profiles><default><constraints>\n")
	for _, setting := range constants {
		fmt.Fprintf(&b, "<%s><const/></%[1]s>\n", setting)
	}
	b.WriteString("</constraints></default>\n")
	for role, limits := range cfg.limits() {
		fmt.Fprintf(&b, "<%s><constraints>\n<workload><const/></workload><reserve_memory><const/></reserve_memory>\n", role)
		for _, setting := range slices.Sorted(maps.Keys(limits)) {
			fmt.Fprintf(&b, "<%s><min>1</min><max>%s</max></%[1]s>\n", setting, limits[setting])
		}
		fmt.Fprintf(&b, "</constraints></%s>\n", role)
	}
	b.WriteString("</profiles>\n<quotas><default></default></quotas>\n<roles>\n")
	all := grants(cfg.AllowFiles)
	for _, r := range everyRole {
		fmt.Fprintf(&b, "<%s><grants>\n", r)
		for _, grant := range all[r] {
			fmt.Fprintf(&b, "<query>GRANT %s</query>\n", grant)
		}
		fmt.Fprintf(&b, "</grants></%s>\n", r)
	}
	fmt.Fprintf(&b, "</roles>\n<users><default><password></password><networks><ip>::/0</ip></networks>"+
		"<profile>default</profile><quota>default</quota><databases><system><tables>%s</tables><columns>%s</columns></system></databases>"+
		"<grants>", listing("name"), listing("table"))
	for _, r := range everyRole {
		fmt.Fprintf(&b, "<query>GRANT %s</query>", r)
	}
	b.WriteString("</grants></default></users>\n</clickhouse>\n")
	return b.String()
}

// clusterXML configures the cluster main, whose shards have one server each, the cluster replicas, whose only shard
// has all of them, and the port by which the engine recognises itself.
func clusterXML(cfg Config) string {
	if len(cfg.Cluster) == 0 {
		return ""
	}
	_, own, _ := net.SplitHostPort(cfg.Listen)
	var replicas []string
	for _, shard := range cfg.Cluster {
		host, port, _ := net.SplitHostPort(shard.Address)
		replicas = append(replicas, fmt.Sprintf("<replica><host>%s</host><port>%s</port><default_database>%s</default_database><user>%s</user><password>%s</password></replica>",
			xmlText(host), xmlText(port), xmlText(shard.Database), xmlText(cfg.User), xmlText(cfg.Password)))
	}
	const begin, end = "<shard><internal_replication>true</internal_replication>", "</shard>\n"
	return fmt.Sprintf("\n<tcp_port>%s</tcp_port>\n<remote_servers><main>\n%s</main>\n<replicas>%s</replicas></remote_servers>\n",
		xmlText(own), begin+strings.Join(replicas, end+begin)+end, begin+strings.Join(replicas, "")+end)
}

func xmlText(text string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text)
}
