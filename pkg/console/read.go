package console

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// Warehouse queries ClickHouse as the analyst. *Reader is the real one.
type Warehouse interface {
	Query(ctx context.Context, sql string, args ...any) (driver.Rows, error)
}

// Reader queries ClickHouse. It connects on the first query, and reconnects after an
// outage.
type Reader struct{ conn driver.Conn }

// NewReader returns a Reader for a URL such as
// clickhouse://analyst:password@127.0.0.1:9000/flow. Errors do not contain the password.
func NewReader(address string) (*Reader, error) {
	o, err := clickhouse.ParseDSN(address)
	if err != nil {
		return nil, fmt.Errorf("parse the ClickHouse URL: %w", err) // the driver redacts credentials
	}
	if o.Protocol != clickhouse.Native {
		return nil, errors.New("parse the ClickHouse URL: it must begin with clickhouse://")
	}
	if o.Auth.Database == "" {
		o.Auth.Database = "flow"
	}
	for i, addr := range o.Addr {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			o.Addr[i] = net.JoinHostPort(addr, "9000")
		}
	}
	if o.DialTimeout <= 0 {
		o.DialTimeout = 2 * time.Second
	}
	o.ReadTimeout = 70 * time.Second // a statement of the analyst may take a minute
	o.MaxOpenConns, o.MaxIdleConns = 6, 3
	o.ConnMaxLifetime = 10 * time.Minute
	conn, err := clickhouse.Open(o)
	if err != nil {
		return nil, fmt.Errorf("open ClickHouse: %w", err)
	}
	return &Reader{conn}, nil
}

// Query runs a statement. The caller closes the rows.
func (r *Reader) Query(ctx context.Context, sql string, args ...any) (driver.Rows, error) {
	return r.conn.Query(ctx, sql, args...)
}

// Ping returns nil when ClickHouse answers.
func (r *Reader) Ping(ctx context.Context) error { return r.conn.Ping(ctx) }

// Close closes the connections.
func (r *Reader) Close() error { return r.conn.Close() }

// timed is ctx with the time limit of a page or a query, which names itself and the remedy
// when it ends a statement.
func timed(ctx context.Context, limit time.Duration, of string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %g s, the time limit of a %s: choose a shorter period or a narrower filter", limit.Seconds(), of))
}

// ended replaces the error of a statement that the limit of ctx has ended: the connection may
// reach it first, and reports a timeout.
func ended(ctx context.Context, err *error) {
	if at, limited := ctx.Deadline(); *err != nil && limited && !time.Now().Before(at) {
		<-ctx.Done()
		*err = context.Cause(ctx)
	}
}

// one scans the only row of a result.
func one(ctx context.Context, db Warehouse, into []any, sql string, args ...any) (err error) {
	defer ended(ctx, &err)
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	if rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
	}
	return rows.Err()
}

// section is a part of a page with its own query: the rows or the error, and the
// statement.
type section[T any] struct {
	Rows []T
	Err  error
	SQL  string
	Also string // second statement, if Rows come from two
}

// first is the first row; nil if there is none.
func (s section[T]) first() *T {
	if s.Err != nil || len(s.Rows) == 0 {
		return nil
	}
	return &s.Rows[0]
}

func readRows[T any](ctx context.Context, db Warehouse, sql string) (s section[T]) {
	defer ended(ctx, &s.Err)
	s.SQL = sql
	rows, err := db.Query(ctx, sql)
	if err != nil {
		s.Err = err
		return s
	}
	defer rows.Close()
	for rows.Next() {
		var row T
		places := fieldsOf(reflect.ValueOf(&row).Elem(), nil)
		if err := rows.Scan(places[:min(len(places), len(rows.Columns()))]...); err != nil {
			s.Err = err
			return s
		}
		s.Rows = append(s.Rows, row)
	}
	s.Err = rows.Err()
	return s
}

func fieldsOf(v reflect.Value, all []any) []any {
	for i := range v.NumField() {
		switch field := v.Type().Field(i); {
		case field.Anonymous:
			all = fieldsOf(v.Field(i), all)
		case field.IsExported():
			all = append(all, v.Field(i).Addr().Interface())
		}
	}
	return all
}
