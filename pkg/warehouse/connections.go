package warehouse

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/clickhouse-go/v2"
)

// connections keeps connections for inserts. A connection is used by one
// insert at a time and goes back only after a success: after an error nothing
// is known about what is still on the wire.
type connections struct {
	options []ch.Options // one per host, the first that answers is used
	metrics *metrics

	mu     sync.Mutex
	idle   []*ch.Client
	limit  int
	closed bool
}

func newConnections(o *clickhouse.Options, limit int, m *metrics) *connections {
	c := &connections{limit: limit, metrics: m}
	common := ch.Options{
		User:             o.Auth.Username,
		Password:         o.Auth.Password,
		ClientName:       "sluice",
		Compression:      compression(o.Compression.Method),
		DialTimeout:      o.DialTimeout,
		HandshakeTimeout: o.DialTimeout,
		TLS:              o.TLS,
		Settings:         settings(o.Settings),
	}
	for _, addr := range o.Addr {
		common.Address = addr
		c.options = append(c.options, common)
	}
	return c
}

func compression(m clickhouse.CompressionMethod) ch.Compression {
	switch m {
	case clickhouse.CompressionLZ4:
		return ch.CompressionLZ4
	case clickhouse.CompressionLZ4HC:
		return ch.CompressionLZ4HC
	case clickhouse.CompressionZSTD:
		return ch.CompressionZSTD
	}
	return ch.CompressionDisabled
}

// settings translates what the URL asks for.
func settings(s clickhouse.Settings) []ch.Setting {
	var all []ch.Setting
	for _, key := range slices.Sorted(maps.Keys(s)) {
		all = append(all, ch.Setting{Key: key, Value: fmt.Sprint(s[key]), Important: true})
	}
	return all
}

var (
	errClosed    = errors.New("the warehouse is closed")
	errUnreached = errors.New("no connection")
)

// get gives an idle connection, or a new one.
func (c *connections) get(ctx context.Context) (*ch.Client, error) {
	c.mu.Lock()
	closed := c.closed
	if n := len(c.idle); n > 0 && !closed {
		client := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return client, nil
	}
	c.mu.Unlock()
	if closed {
		return nil, errClosed
	}
	var all error
	for _, o := range c.options {
		client, err := ch.Dial(ctx, o)
		if err == nil {
			c.metrics.connects.Inc()
			return client, nil
		}
		all = errors.Join(all, fmt.Errorf("connect to %s: %w", o.Address, err))
	}
	return nil, fmt.Errorf("%w: %w", errUnreached, all)
}

// put takes a connection back after a success.
func (c *connections) put(client *ch.Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.idle) >= c.limit {
		_ = client.Close()
		return
	}
	c.idle = append(c.idle, client)
}

// reset closes the idle connections: when one turns out broken, those of the
// same age most likely are too.
func (c *connections) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, client := range c.idle {
		_ = client.Close()
	}
	c.idle = nil
}

func (c *connections) close() {
	c.reset()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}
