package server_test

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/fatal"
)

// TestAStatementIsKilledByTheIDOfItsClient, over either protocol.
func TestAStatementIsKilledByTheIDOfItsClient(t *testing.T) {
	e := clickhousetest.Shared(t)
	_, address := clickhousetest.FreshDatabase(t)
	const long = "SELECT sum(sleepEachRow(0.01)) FROM numbers(1000) SETTINGS max_block_size = 10, function_sleep_max_microseconds_per_block = 0"
	post := func(id, sql string) (*http.Response, error) {
		return http.Post(e.HTTP()+"/?query_id="+url.QueryEscape(id), "text/plain", strings.NewReader(sql))
	}
	over := map[string]func(id string) error{
		"HTTP": func(id string) error {
			res, err := post(id, long)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
			return errors.New("code: " + res.Header.Get("X-ClickHouse-Exception-Code"))
		},
		"native": func(id string) error {
			return open(t, address).Exec(clickhouse.Context(t.Context(), clickhouse.WithQueryID(id)), long)
		},
	}
	for name, run := range over {
		t.Run(name, func(t *testing.T) {
			id := "it's " + name
			ended, begun := make(chan error, 1), time.Now()
			go func() { ended <- run(id) }()
			for {
				res, err := post("killer", "KILL QUERY WHERE query_id = 'it\\'s "+name+"' SYNC")
				fatal.If(t, err)
				res.Body.Close()
				select {
				case err := <-ended:
					if err == nil || !strings.Contains(err.Error(), "code: 394") || time.Since(begun) > 8*time.Second {
						t.Errorf("it ended after %v: %v", time.Since(begun), err)
					}
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		})
	}
}

// TestNativeProgress: a client gets progress of a running statement.
func TestNativeProgress(t *testing.T) {
	t.Parallel()
	_, address := clickhousetest.FreshDatabase(t)
	c := open(t, address)
	var packets, rows atomic.Uint64
	ctx := clickhouse.Context(t.Context(), clickhouse.WithProgress(func(p *clickhouse.Progress) {
		packets.Add(1)
		rows.Add(p.Rows)
	}))
	var n uint64
	fatal.If(t, c.QueryRow(ctx, "SELECT sum(sleepEachRow(0.02)) + 100 FROM numbers(100) SETTINGS max_block_size = 1, max_threads = 1, function_sleep_max_microseconds_per_block = 0").Scan(&n))
	if packets.Load() < 2 || rows.Load() != 100 {
		t.Errorf("%d packets of progress report %d rows, want some, of 100", packets.Load(), rows.Load())
	}
}
