package warehouse

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// On a cluster every table is two: the rows of each server (records_local), and a Distributed
// table over all (records), which is read and inserted into.
//
//	block ─▶ records (Distributed) ─┬─▶ records_local of shard 1 ─▶ its aggregate tables
//	         token                  └─▶ records_local of shard 2 ─▶ its aggregate tables
//
// An insert is split by the sharding key, always in the same way, and every shard gets its part
// under the token of the block. It is confirmed once all have it. If one has not, the block is
// sent again: the other shards deduplicate it, in the table and in the aggregate tables.

// servers are connections to each server of a cluster, opened on demand.
type servers struct {
	options *clickhouse.Options

	mu      sync.Mutex
	open    map[string]driver.Conn  // by address
	inserts map[string]*connections // by address

	replicas atomic.Int64 // of every shard; 0: unknown
}

func (s *servers) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all error
	for _, conn := range s.open {
		all = errors.Join(all, conn.Close())
	}
	for _, c := range s.inserts {
		c.close()
	}
	s.open, s.inserts = nil, nil
	return all
}

// at is the connection to one server.
func (s *servers) at(address string) (driver.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if conn, ok := s.open[address]; ok {
		return conn, nil
	}
	o := *s.options
	o.Addr = []string{address}
	conn, err := clickhouse.Open(&o)
	if err != nil {
		return nil, fmt.Errorf("open ClickHouse at %s: %w", address, err)
	}
	if s.open == nil {
		s.open = map[string]driver.Conn{}
	}
	s.open[address] = conn
	return conn, nil
}

// replica is a line of system.clusters.
type replica struct {
	shard   uint32
	weight  uint32
	address string
}

// layout reads the cluster configuration of the connected server.
func (db *DB) layout(ctx context.Context) (all []replica, err error) {
	err = db.each(ctx, "read the cluster", "SELECT shard_num, shard_weight, host_name, port FROM system.clusters WHERE cluster = ? ORDER BY shard_num, replica_num",
		[]any{db.cfg.Cluster}, func(rows driver.Rows) error {
			var r replica
			var host string
			var port uint16
			err := rows.Scan(&r.shard, &r.weight, &host, &port)
			r.address = net.JoinHostPort(host, strconv.Itoa(int(port)))
			all = append(all, r)
			return err
		})
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("ClickHouse has no cluster %s: add it to remote_servers in its configuration", db.cfg.Cluster)
	}
	return all, err
}

// modulus is the number of shards in the sharding key of a Distributed table.
var modulus = regexp.MustCompile(`% (\d+)(?:, |\))`)

// shards is the number of shards that rows are divided among, as of the creation of the tables.
func (db *DB) shards(ctx context.Context) (int, error) {
	all, err := db.layout(ctx)
	if err != nil {
		return 0, err
	}
	found := map[uint32]int{}
	for _, r := range all {
		found[r.shard]++
		switch {
		case r.weight != 1:
			return 0, fmt.Errorf("shard %d of the cluster %s has weight %d: all need 1, the default", r.shard, db.cfg.Cluster, r.weight)
		case db.cfg.Single && found[r.shard] > 1:
			return 0, fmt.Errorf("shard %d of the cluster %s has replicas, which would get no copies: remove --clickhouse-single or the replicas", r.shard, db.cfg.Cluster)
		}
	}
	var engine string
	err = db.each(ctx, "look for the table over all shards", "SELECT engine_full FROM system.tables WHERE database = ? AND name = 'records'", []any{db.name},
		func(rows driver.Rows) error { return rows.Scan(&engine) })
	if err != nil || engine == "" {
		return len(found), err
	}
	m := modulus.FindStringSubmatch(engine)
	if m == nil {
		return 0, fmt.Errorf("table %s.records is not a Distributed table of a cluster: its engine is %.80s", db.name, engine)
	}
	shards, err := strconv.Atoi(m[1])
	if err == nil && shards > len(found) {
		err = fmt.Errorf("the tables of %s have %d shards, but the cluster %s has only %d: add the missing shards", db.name, shards, db.cfg.Cluster, len(found))
	}
	return shards, err
}

// everywhere runs a statement on every server, by Keeper or else one by one. A crash in between
// leaves some without it: every statement is repeatable.
func (db *DB) everywhere(ctx context.Context, statement string, args ...any) error {
	if db.cfg.Cluster == "" || !db.cfg.Single {
		return db.exec(ctx, statement, args...)
	}
	all, err := db.layout(ctx)
	if err != nil {
		return err
	}
	for _, r := range all {
		if err := db.execAt(ctx, db.cfg.QueryTimeout, r.address, statement, args...); err != nil {
			return fmt.Errorf("shard %d, %s: %w", r.shard, r.address, err)
		}
	}
	return nil
}

// onShards runs a statement on one server of each shard, within bound each.
func (db *DB) onShards(ctx context.Context, bound time.Duration, statement string) error {
	if db.cfg.Cluster == "" {
		ctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		return db.queries.Exec(ctx, statement)
	}
	all, err := db.layout(ctx)
	if err != nil {
		return err
	}
	done, failed := map[uint32]bool{}, map[uint32]error{}
	for _, r := range all {
		if done[r.shard] {
			continue
		}
		if err := db.execAt(ctx, bound, r.address, statement); err != nil {
			failed[r.shard] = errors.Join(failed[r.shard], fmt.Errorf("shard %d, %s: %w", r.shard, r.address, err))
			continue
		}
		done[r.shard] = true
	}
	for shard, err := range failed {
		if !done[shard] {
			return err
		}
	}
	return nil
}

// execAt runs a statement on one server of the cluster, within bound.
func (db *DB) execAt(ctx context.Context, bound time.Duration, address, statement string, args ...any) error {
	conn, err := db.servers.at(address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	return conn.Exec(ctx, statement, args...)
}

// quorum is the number of replicas that must have an insert before it is confirmed: all of the
// shard, or all servers for tables that are on every server. With fewer, a replica could be lost with
// rows that no other has. 0 without replication.
func (db *DB) quorum(ctx context.Context, everywhere bool) (int64, error) {
	if !db.plain().Replicated() {
		return 0, nil
	}
	if n := db.servers.replicas.Load(); n > 0 && !everywhere {
		return n, nil
	}
	all, err := db.layout(ctx)
	if err != nil {
		return 0, err
	}
	if everywhere {
		return int64(len(all)), nil
	}
	found := map[uint32]int64{}
	for _, r := range all {
		found[r.shard]++
	}
	for shard, n := range found {
		if n != found[all[0].shard] {
			return 0, fmt.Errorf("shard %d of the cluster %s has %d replicas and shard %d has %d: configure the same number, as every insert waits for all", shard, db.cfg.Cluster, n, all[0].shard, found[all[0].shard])
		}
	}
	db.servers.replicas.Store(found[all[0].shard])
	return found[all[0].shard], nil
}

// storing makes inserts of ctx return only once they are stored everywhere.
func (db *DB) storing(ctx context.Context, more clickhouse.Settings) (context.Context, error) {
	settings := clickhouse.Settings{"async_insert": 0}
	quorum, err := db.quorum(ctx, false)
	if err != nil {
		return ctx, err
	}
	if quorum > 0 {
		settings["insert_quorum"], settings["insert_quorum_parallel"] = quorum, 1
	}
	maps.Copy(settings, more)
	return clickhouse.Context(ctx, clickhouse.WithSettings(settings)), nil
}

// storeEverywhere runs an INSERT into a table that is on every server. It is confirmed once every
// server has it, so that any can answer.
func (db *DB) storeEverywhere(ctx context.Context, statement string, args ...any) error {
	settings := clickhouse.Settings{"async_insert": 0}
	quorum, err := db.quorum(ctx, true)
	if err != nil {
		return err
	}
	if quorum > 0 {
		settings["insert_quorum"], settings["insert_quorum_parallel"] = quorum, 1
	}
	if db.cfg.Single {
		settings["distributed_group_by_no_merge"] = 1 // unmerged rows of every shard
	}
	return db.everywhere(clickhouse.Context(ctx, clickhouse.WithSettings(settings)), statement, args...)
}

// shardwise makes each shard answer queries of ctx by itself and completely: the caller merges the
// answers. A single server gives one answer.
func (db *DB) shardwise(ctx context.Context) context.Context {
	if db.cfg.Cluster == "" {
		return ctx
	}
	return clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{"distributed_group_by_no_merge": 1}))
}

// onReplicas is a table for lookups that decide what is stored: as every replica has it, since one that lags
// lacks inserts that are not confirmed. select_sequential_consistency would hide these, and needs inserts that
// wait for each other. A server that does not answer fails the lookup.
func (db *DB) onReplicas(table string) string {
	d := db.plain()
	if !d.Replicated() {
		return db.name + "." + table
	}
	return fmt.Sprintf("clusterAllReplicas('%s', %s)", d.Cluster, d.Table(table))
}

// count returns the result of a counting expression: per shard the least and the most of its replicas, summed over
// the shards.
func (db *DB) count(ctx context.Context, doing, expression, table, where string) (least, most uint64, err error) {
	replicas, err := db.quorum(ctx, false)
	if err != nil {
		return 0, 0, storeError(doing, err)
	}
	found := map[int64][]uint64{} // by shard
	err = db.each(db.shardwise(ctx), doing, fmt.Sprintf("SELECT toInt64(shardNum()), %s FROM %s WHERE %s", expression, db.onReplicas(table), where), nil, func(rows driver.Rows) error {
		var server int64 // from 1 on, in the order of system.clusters; 0 for a single server
		var n uint64
		err := rows.Scan(&server, &n)
		shard := (server - 1) / max(1, replicas)
		found[shard] = append(found[shard], n)
		return err
	})
	for _, all := range found {
		least, most = least+slices.Min(all), most+slices.Max(all)
	}
	return least, most, err
}
