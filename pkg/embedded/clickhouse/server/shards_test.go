package server_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/fatal"
)

// freeAddress is a loopback address that nothing listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer l.Close()
	return l.Addr().String()
}

// shards starts two engines that know each other as the shards of main.
func shards(t *testing.T) [2]*clickhousetest.Engine {
	t.Helper()
	addresses := [2]string{freeAddress(t), freeAddress(t)}
	var engines [2]*clickhousetest.Engine
	for i := range engines {
		engines[i] = clickhousetest.Start(t, func(c *server.Config) {
			c.Listen, c.AllowFiles = addresses[i], true
			c.Cluster = []server.Shard{{Address: addresses[0]}, {Address: addresses[1]}}
		})
	}
	return engines
}

func shardConn(t *testing.T, e *clickhousetest.Engine, settings clickhouse.Settings) driver.Conn {
	t.Helper()
	o, err := clickhouse.ParseDSN(e.URL("default"))
	fatal.If(t, err)
	o.Settings = settings
	conn, err := clickhouse.Open(o)
	fatal.If(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestTwoEnginesAreShards inserts over the wire into both through one, and reads
// whole answers of both.
func TestTwoEnginesAreShards(t *testing.T) {
	t.Parallel()
	engines := shards(t)
	for _, e := range engines {
		clickhousetest.Exec(t, e, "CREATE TABLE default.t_local (k UInt64, v LowCardinality(String)) ENGINE = MergeTree ORDER BY k SETTINGS non_replicated_deduplication_window = 100")
		clickhousetest.Exec(t, e, "CREATE TABLE default.t AS default.t_local ENGINE = Distributed('main', 'default', 't_local', k % 2)")
	}
	insert := func(token string) error {
		conn := shardConn(t, engines[0], clickhouse.Settings{"distributed_foreground_insert": 1, "insert_deduplication_token": token})
		batch, err := conn.PrepareBatch(t.Context(), "INSERT INTO default.t (k, v)")
		if err != nil {
			return err
		}
		for i := range uint64(100) {
			if err := batch.Append(i, "value"); err != nil {
				return err
			}
		}
		return batch.Send()
	}
	for range 2 { // the second time every shard knows the token
		fatal.If(t, insert("a"))
	}
	whole := " SETTINGS distributed_group_by_no_merge = 1"
	for i, e := range engines {
		if got := clickhousetest.Exec(t, e, "SELECT count(), sum(k) FROM default.t_local"); got != []string{"50\t2450\n", "50\t2500\n"}[i] {
			t.Errorf("shard %d holds %q", i+1, got)
		}
		if got := clickhousetest.Exec(t, e, "SELECT sum(n) FROM (SELECT count() AS n FROM default.t)"+whole); got != "100\n" {
			t.Errorf("asked at shard %d, both hold %q", i+1, got)
		}
		if got := clickhousetest.Exec(t, e, "SELECT k FROM default.t WHERE k IN (3, 4) ORDER BY k"+whole); got != "3\n4\n" && got != "4\n3\n" {
			t.Errorf("asked at shard %d: %q", i+1, got)
		}
	}
	conn := shardConn(t, engines[0], nil)
	if err := conn.Exec(t.Context(), "SELECT count() FROM default.t"); err == nil || !strings.Contains(err.Error(), "only whole queries") {
		t.Errorf("a query that is not whole: %v", err)
	}

	engines[1].Kill()
	if err := insert("b"); err == nil {
		t.Error("an insert succeeded though a shard is away")
	}
	began := time.Now()
	if err := conn.Exec(t.Context(), "SELECT count() FROM default.t"+whole); err == nil || !strings.Contains(err.Error(), engines[1].Addr()) {
		t.Errorf("a question with a shard away: %v, want its address", err)
	}
	if got := clickhousetest.Exec(t, engines[0], "SELECT count() FROM default.t"+whole+", skip_unavailable_shards = 1"); got != "50\n" && got != "100\n" {
		t.Errorf("without the shard that is away: %q", got)
	}
	t.Logf("%s", time.Since(began))
	engines[1].Restart()
	fatal.If(t, insert("b"))
	if got := clickhousetest.Exec(t, engines[1], "SELECT sum(n) FROM (SELECT count() AS n FROM default.t)"+whole); got != "200\n" {
		t.Errorf("after the block was sent again both hold %q", got)
	}
}
