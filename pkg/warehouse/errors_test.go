package warehouse_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/warehouse"
)

func TestEveryErrorHasItsClass(t *testing.T) {
	exception := func(code int, message string) error {
		return fmt.Errorf("handle packet: %w", &ch.Exception{Code: proto.Error(code), Name: "DB::Exception", Message: message})
	}
	tests := []struct {
		name  string
		err   error
		class flow.Class
		code  int
	}{
		{"memory limit", exception(241, ""), flow.ClassRetry, 241},
		{"too many parts", exception(252, "Too many parts (3001)"), flow.ClassRetry, 252},
		{"too many partitions", exception(252, "Too many partitions for single INSERT block (more than 100)"), flow.ClassPoison, 252},
		{"read-only table", exception(242, ""), flow.ClassRetry, 242},
		{"disk full", exception(243, ""), flow.ClassRetry, 243},
		{"unknown status of an insert", exception(319, ""), flow.ClassRetry, 319},
		{"keeper", exception(999, ""), flow.ClassRetry, 999},
		{"unknown table", exception(60, ""), flow.ClassHalt, 60},
		{"unknown setting", exception(115, ""), flow.ClassHalt, 115},
		{"wrong password", exception(516, ""), flow.ClassHalt, 516},
		{"constraint", exception(469, ""), flow.ClassPoison, 469},
		{"decimal overflow", exception(407, ""), flow.ClassPoison, 407},
		{"logical error", exception(49, ""), flow.ClassUnknown, 49},
		{"unknown exception", exception(1002, ""), flow.ClassUnknown, 1002},
		{"a code of the future", exception(123456, ""), flow.ClassUnknown, 123456},
		{"end of file", fmt.Errorf("packet: %w", io.EOF), flow.ClassRetry, 0},
		{"cut short", fmt.Errorf("decode: %w", io.ErrUnexpectedEOF), flow.ClassRetry, 0},
		{"refused", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, flow.ClassRetry, 0},
		{"reset", syscall.ECONNRESET, flow.ClassRetry, 0},
		{"no such host", &net.DNSError{Err: "no such host"}, flow.ClassRetry, 0},
		{"too slow", context.DeadlineExceeded, flow.ClassRetry, 0},
		{"closed under the insert", ch.ErrClosed, flow.ClassRetry, 0},
		{"something else", errors.New("bad server packet type 99"), flow.ClassUnknown, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := warehouse.StoreError("insert", tt.err)
			if got.Class != tt.class || got.Code != tt.code {
				t.Errorf("got class %d and code %d, want %d and %d", got.Class, got.Code, tt.class, tt.code)
			}
		})
	}
}

// TestAConnectionFailsInPlainWords excludes the driver's layers from what operators read.
func TestAConnectionFailsInPlainWords(t *testing.T) {
	at := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9000}
	for want, err := range map[string]error{
		": it closed the connection": fmt.Errorf("packet: uvarint: read: read: %w", io.EOF),
		" (127.0.0.1:9000): connection reset by peer": fmt.Errorf("handshake: failed to read packet: %w",
			&net.OpError{Op: "read", Addr: at, Err: os.NewSyscallError("read", syscall.ECONNRESET)}),
		" (127.0.0.1:9000): timeout":   &net.OpError{Op: "read", Addr: at, Err: os.ErrDeadlineExceeded},
		": lookup store: no such host": &net.OpError{Op: "dial", Err: &net.DNSError{Name: "store", Err: "no such host"}},
	} {
		e := warehouse.StoreError("insert", err)
		expect.Equal(t, "the text of "+err.Error(), "insert: ClickHouse does not answer"+want, e.Error())
		expect.Not(t, !errors.Is(e, err), "%v hides its cause", e)
	}
}

func TestNoCodeHasTwoClasses(t *testing.T) {
	seen := map[proto.Error]flow.Class{}
	for class, codes := range warehouse.Classes {
		for _, code := range codes {
			if other, twice := seen[code]; twice {
				t.Errorf("%v is of class %d and %d", code, class, other)
			}
			seen[code] = class
			expect.Not(t, !code.IsAError(), "%d is not an error of ClickHouse", code)
		}
	}
	expect.Not(t, len(seen) < 80, "only %d codes have a class", len(seen))
}

// TestClassesOfTheRealEngine makes the engine fail in each way.
func TestClassesOfTheRealEngine(t *testing.T) {
	tests := []struct {
		name  string
		harm  []string
		class flow.Class
		code  int
		fix   []string // makes the same insert succeed
		want  string   // rows and counts afterwards
	}{
		{"the table is gone", []string{"RENAME TABLE {db}.records TO {db}.away"}, flow.ClassHalt, 60,
			[]string{"RENAME TABLE {db}.away TO {db}.records"}, "20\t20"},
		{"a column is gone", []string{"ALTER TABLE {db}.records DROP COLUMN rejection_reason SETTINGS mutations_sync = 2"}, flow.ClassHalt, 0, nil, ""}, // 16 from a server, 47 from the embedded engine,
		{"a constraint refuses a value", []string{"ALTER TABLE {db}.records ADD CONSTRAINT c CHECK position != 5"}, flow.ClassPoison, 469,
			[]string{"ALTER TABLE {db}.records DROP CONSTRAINT c"}, "20\t20"},
		{"a view refuses a value", []string{
			"CREATE MATERIALIZED VIEW {db}.zz_mv TO {db}.changes AS SELECT throwIf(id = '1-5') AS stream_seq FROM {db}.records",
		}, flow.ClassPoison, 395, []string{"DROP VIEW {db}.zz_mv SYNC"}, "20\t20"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			db := open(t)
			for _, s := range tt.harm {
				query(t, db, s)
			}
			b := block(t, 0, 1, jobs(1, 20)...)
			var e *flow.StoreError
			if err := db.Insert(t.Context(), b); !errors.As(err, &e) || e.Class != tt.class || tt.code != 0 && e.Code != tt.code {
				t.Fatalf("got %v of class %v and code %v, want %d and %d", err, e.Class, e.Code, tt.class, tt.code)
			}
			expect.Not(t, strings.Contains(e.Error(), "1-5"), "the error quotes a value: %v", e)
			if tt.fix == nil {
				return
			}
			for _, s := range tt.fix {
				query(t, db, s)
			}
			fatal.If(t, db.Insert(t.Context(), b))
			expect.Equal(t, "rows, counted", tt.want, query(t, db, "SELECT (SELECT count() FROM {db}.records), (SELECT sum(records) FROM {db}.counts_1m)"))
		})
	}
}

func TestStoredReportsWhetherARefusedBlockHasRows(t *testing.T) {
	tests := []struct {
		name, harm string
		want       uint64
	}{
		{"a constraint refuses before", "ALTER TABLE {db}.records ADD CONSTRAINT c CHECK position != 5", 0},
		{"a table of a view refuses after", "ALTER TABLE {db}.counts_1m ADD CONSTRAINT c CHECK records = 0", 20},
		{"a view refuses after", "CREATE MATERIALIZED VIEW {db}.zz_mv TO {db}.changes AS SELECT throwIf(id = '1-5') AS stream_seq FROM {db}.records", 20},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			db := open(t)
			fatal.If(t, db.Insert(t.Context(), block(t, 0, 1, jobs(100, 10)...)))
			query(t, db, tt.harm)
			b := block(t, 0, 2, jobs(1, 20)...)
			var e *flow.StoreError
			if err := db.Insert(t.Context(), b); !errors.As(err, &e) {
				t.Fatalf("the insert ended with %v, want a rejection", err)
			}
			expect.Equal(t, "rows are visible", tt.want, visible(t, db, b))
			expect.Equal(t, "a view failed", tt.want > 0, e.InView)
		})
	}
}

func TestAWrongPasswordHaltsAndIsNeverShown(t *testing.T) {
	const right, wrong = "r1ght-s3cret", "wr0ng-s3cret"
	e := clickhousetest.Start(t, func(c *server.Config) { c.Password = right })
	good := openURL(t, e.URL("flow"))
	fatal.If(t, good.Migrate(t.Context()))
	b := block(t, 0, 1, jobs(1, 3)...)
	fatal.If(t, good.Insert(t.Context(), b))
	u, err := url.Parse(e.URL("flow"))
	fatal.If(t, err)
	u.User = url.UserPassword("default", wrong)
	bad := openURL(t, u.String())
	var refused *flow.StoreError
	if err := bad.Insert(t.Context(), b); !errors.As(err, &refused) || refused.Class != flow.ClassHalt {
		t.Errorf("insert with a wrong password: %v, want class halt", err)
	}
	for _, err := range []error{refused, bad.Migrate(t.Context()), bad.Check(t.Context()), bad.Ping(t.Context())} {
		expect.Not(t, err == nil || strings.Contains(err.Error(), wrong), "got %v, want an error without the password", err)
	}
}
