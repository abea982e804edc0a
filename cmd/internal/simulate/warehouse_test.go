package simulate_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/simulate"
	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

func TestMain(m *testing.M) { clickhousetest.Main(m) }

// may and june are records of different months that the tables accept; rejected is one
// that they reject.
func may(position int) string  { return positioned(position, position, 1_746_100_000_000) }
func june(position int) string { return positioned(position, position, 1_749_100_000_000) }

var rejected = positioned(9, 777, 1_746_100_000_000)

func positioned(position, key int, ts int64) string {
	return fmt.Sprintf(`{"partitionId":1,"position":%d,"key":%d,"timestamp":%d,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","value":{}}`, position, key, ts+int64(position))
}

// warehouseBehaviours are the behaviours on which recovery relies. Each row must give the
// same answer with the simulated warehouse and with the real engine; some cannot run on a
// single real server.
var warehouseBehaviours = []struct {
	name      string
	do        func(*tables) string
	want      string
	simulated bool
}{
	{"a known token stores nothing", func(s *tables) string {
		return s.insert("t", 1, may(1), may(2)) + s.insert("t", 1, may(1), may(2)) + s.visible(1, may(1), may(2)) + s.rows()
	}, "ok ok 2 visible 2 counted ", false},
	{"a known token stores no other rows", func(s *tables) string {
		return s.insert("t", 1, may(1)) + s.insert("t", 2, may(2)) + s.visible(2, may(2)) + s.rows()
	}, "ok ok 0 visible 1 counted ", false},
	{"a token is known per month in tables with a part per month", func(s *tables) string {
		return s.insert("t", 1, may(1)) + s.insert("t", 2, june(2)) + s.visible(2, june(2)) + s.rows()
	}, "ok ok 1 visible 1 counted ", false}, // flow.sources has no months
	{"another token stores the rows again, and counts them", func(s *tables) string {
		return s.insert("t", 1, may(1)) + s.insert("u", 1, may(1)) + s.rows()
	}, "ok ok 2 counted ", false},
	{"a row that is rejected rejects its insert, and no token is known", func(s *tables) string {
		return s.insert("t", 1, may(1), rejected) + s.visible(1, may(1), rejected) + s.insert("t", 1, may(1)) + s.visible(1, may(1)) + s.rows()
	}, "poison 0 visible ok 1 visible 1 counted ", false},
	{"a view that rejects leaves the rows visible, and the same token completes it", func(s *tables) string {
		s.Refuse(true)
		text := s.insert("t", 1, may(1)) + s.visible(1, may(1))
		s.Refuse(false)
		return text + s.insert("t", 1, may(1)) + s.visible(1, may(1)) + s.counters() + s.rows()
	}, "view failed 1 visible ok 1 visible 1 in counters 1 counted ", false},
	{"a constraint that is newer than stored rows rejects their repeat", func(s *tables) string {
		text := s.insert("t", 1, may(3))
		s.Limit(true)
		text += s.insert("t", 1, may(3))
		s.Limit(false)
		return text + s.visible(1, may(3)) + s.rows()
	}, "ok poison 1 visible 1 counted ", false},
	{"rows of another stored_at are counted apart", func(s *tables) string {
		text := s.insert("t", 1, may(1))
		s.storedAt += 1000
		return text + s.visible(1, may(1))
	}, "ok 0 visible ", false},
	{"the last message of an incarnation, and the last incarnation", func(s *tables) string {
		text := s.last(0) + s.last(7)
		text += s.insert("t", 5, may(1)) + s.insert("u", 3, may(2)) + s.last(7) + s.last(0)
		s.incarnation = 8
		return text + s.insert("v", 2, may(3)) + s.last(7) + s.last(8) + s.last(0) + s.incarnations(6) + s.incarnations(7)
	}, "0:0 7:0 ok ok 7:5 7:5 ok 7:5 8:2 8:2 [{7 3} {8 2}] [{8 2}] ", false},
	{"a stored record is known by its identity, unless it has expired", func(s *tables) string {
		text := s.insert("t", 1, may(1), may(2)) + s.known(may(2), "") + s.known(may(3), "") + s.known(june(2), "")
		today := flow.UTCDay(s.storedAt)
		return text + s.known(may(2), flow.UTCDay(s.storedAt-86_400_000)) + s.known(may(2), today)
	}, "ok true false false true false ", false},
	{"a day reaches as far as its highest position", func(s *tables) string {
		return s.insert("t", 1, may(4)) + s.insert("u", 2, may(2)) + s.mark(may(1)) + s.mark(june(1))
	}, "ok ok 4 none ", false},
	{"what is stored is not stale", func(s *tables) string {
		return s.insert("t", 1, may(1)) + fmt.Sprint(len(must(s.StaleSourceDays(s.ctx, 0, 7))))
	}, "ok 0", false},
	{"rows that the views received are not counted again", func(s *tables) string {
		text := s.insert("t", 1, may(1))
		if err := s.Reaggregate(s.ctx, s.block(1, may(1))); err != nil {
			text += err.Error()
		}
		return text + s.rows()
	}, "ok 1 counted ", false},
	{"parts are counted since a time, rather too many", func(s *tables) string {
		before := must(s.Clock(s.ctx)).Add(-time.Hour)
		text := s.insert("t", 1, may(1)) + s.insert("u", 2, may(2))
		parts, err := s.PartsSince(s.ctx, before)
		return text + fmt.Sprint(parts >= 2, err)
	}, "ok ok true <nil>", false},
	{"due rows expire, and stay counted", func(s *tables) string {
		s.storedAt = must(s.Clock(s.ctx)).AddDate(0, 0, -9).UnixMilli()
		text := s.insert("t", 1, may(1))
		s.storedAt = must(s.Clock(s.ctx)).UnixMilli()
		text += s.insert("u", 2, june(2))
		s.Expire()
		text += s.visible(2, june(2)) + s.rows()
		s.storedAt = 0
		return text + s.visible(1, may(1))
	}, "ok ok 1 visible 2 counted 0 visible ", false},
	{"a set-back removes rows and tokens", func(s *tables) string {
		text := s.insert("t", 1, may(1))
		s.SetBack()
		return text + s.rows() + s.insert("t", 1, may(1)) + s.rows()
	}, "ok 0 counted ok 1 counted ", true},
	{"a lagging replica lacks an insert, whose token is known, and confirms it after it has caught up", func(s *tables) string {
		text := s.insert("t", 1, may(1))
		s.Lag(true)
		text += s.insert("t", 1, may(1)) + s.insert("u", 2, may(2)) + s.visible(1, may(1)) + s.visible(2, may(2)) + s.known(may(2), "") + s.last(7) + s.rows()
		s.Lag(false)
		return text + s.visible(2, may(2)) + s.insert("u", 2, may(2)) + s.rows()
	}, "ok unconfirmed unconfirmed 1 visible 0 to 1 visible true 7:2 2 counted 1 visible ok 2 counted ", true},
}

type tables struct {
	simulate.Tables
	ctx         context.Context
	incarnation uint64
	storedAt    int64
	prefix      string // of its tokens
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (s *tables) block(seq uint64, records ...string) record.Block {
	c := &record.Columns{}
	m := &flow.Message{Topic: "flow.0.record", Source: "s", Seq: seq, Incarnation: s.incarnation, Received: time.UnixMilli(1_746_100_000_000), Records: len(records), Body: []byte("[" + strings.Join(records, ",") + "]")}
	if bad, err := c.AppendGood(m); err != nil || len(bad) > 0 {
		panic(fmt.Sprint(bad, err))
	}
	return record.Block{Columns: c, To: c.Rows(), StoredAt: s.storedAt, Timeout: time.Minute}
}

func (s *tables) insert(token string, seq uint64, records ...string) string {
	b := s.block(seq, records...)
	b.Token = s.prefix + token
	var store *flow.StoreError
	switch err := s.Insert(s.ctx, b); {
	case err == nil:
		return "ok "
	case errors.As(err, &store) && store.Class == flow.ClassPoison:
		return map[bool]string{true: "view failed ", false: "poison "}[store.InView]
	case errors.As(err, &store) && store.Code == 319:
		return "unconfirmed "
	default:
		return err.Error() + " "
	}
}

func (s *tables) visible(seq uint64, records ...string) string {
	least, most, err := s.Visible(s.ctx, s.block(seq, records...))
	switch {
	case err != nil:
		return err.Error()
	case least < most:
		return fmt.Sprintf("%d to %d visible ", least, most)
	}
	return fmt.Sprint(most, " visible ")
}

func (s *tables) rows() string {
	return fmt.Sprint(must(s.Marks(s.ctx, 0, s.incarnation, nil)).Rows, " counted ")
}

func (s *tables) counters() string { return fmt.Sprint(s.Counters(), " in counters ") }

func (s *tables) last(incarnation uint64) string {
	of, seq, err := s.Last(s.ctx, 0, incarnation)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d:%d ", of, seq)
}

func (s *tables) incarnations(above uint64) string {
	return fmt.Sprint(must(s.Incarnations(s.ctx, 0, above)), " ")
}

func (s *tables) known(text, line string) string {
	b := s.block(99, text)
	want, found := b.Columns.Identity.Value(0), false
	err := s.Known(s.ctx, b.Columns, []int{0}, line, func(id *flow.Identity) {
		found = found || id.Content == string(want) && id.Position == b.Columns.Position[0] && id.TS == b.Columns.TS[0] && id.Key == b.Columns.Key[0]
	})
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(found, " ")
}

func (s *tables) mark(text string) string {
	b := s.block(99, text)
	day := flow.SourceDay{Source: "s", Partition: 1, Day: flow.Day(b.Columns.TS[0])}
	last, is := must(s.Marks(s.ctx, 0, s.incarnation, []flow.SourceDay{day})).Last[day]
	if !is {
		return "none "
	}
	return fmt.Sprint(last, " ")
}

func TestBehavioursOfTheSimulatedWarehouse(t *testing.T) {
	for _, b := range warehouseBehaviours {
		t.Run(b.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				simulate.ServeTables(synctest.Wait, func(w simulate.Tables) {
					s := &tables{w, context.Background(), 7, must(w.Clock(context.Background())).UnixMilli(), ""}
					expect.Equal(t, "want", b.want, b.do(s))
				})
			})
		})
	}
}

func TestBehavioursOfTheRealWarehouse(t *testing.T) {
	name, address := clickhousetest.FreshDatabase(t)
	db, err := warehouse.Open(warehouse.Config{URL: address}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	fatal.If(t, err)
	defer db.Close()
	fatal.If(t, errors.Join(db.Migrate(t.Context()), db.Retain(t.Context(), warehouse.Retention{Table: "records", Days: 2})))
	exec := func(sql string) string {
		return strings.TrimSpace(clickhousetest.Exec(t, clickhousetest.Shared(t), strings.ReplaceAll(sql, "{db}", name)))
	}
	exec("ALTER TABLE {db}.records ADD CONSTRAINT no_sevens CHECK key % 1000 != 777")
	for i, b := range warehouseBehaviours {
		if b.simulated {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			for _, table := range []string{"records", "sources", "counts_1m"} { // this keeps the tokens
				exec("TRUNCATE TABLE {db}." + table)
			}
			w := simulate.Tables{Tables: db, Index: db, Refuse: func(is bool) {
				exec(map[bool]string{true: "ALTER TABLE {db}.counts_1m ADD CONSTRAINT none CHECK records = 0", false: "ALTER TABLE {db}.counts_1m DROP CONSTRAINT none"}[is])
			}, Limit: func(is bool) {
				exec("ALTER TABLE {db}.records " + map[bool]string{true: "ADD CONSTRAINT newer CHECK key % 10 != 3", false: "DROP CONSTRAINT newer"}[is])
			}, Expire: func() { exec("OPTIMIZE TABLE {db}.records FINAL") }, Counters: func() string { return exec("SELECT sum(records) FROM {db}.counts_1m") }}
			s := &tables{w, t.Context(), 7, must(db.Clock(t.Context())).UnixMilli(), fmt.Sprint("row ", i, " ")}
			expect.Equal(t, "want", b.want, b.do(s))
		})
	}
}
