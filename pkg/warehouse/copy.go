package warehouse

import (
	"context"
	"fmt"
	"strings"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// Copy copies the rows of the live table that are older than the plan, or of
// other lives of the lanes, and makes the folds and counters of them. It goes
// month by month, and each month is written down when it begins and when it is
// done: one in the middle of which a rebuild ended is removed and begun again.
func (s *Shadow) Copy(ctx context.Context, plan []Start, progress func(done, total uint64)) error {
	older := olderThan(plan)
	months, counts, err := s.months(ctx, older)
	if err != nil {
		return err
	}
	begun, done := map[uint32]bool{}, map[uint32]bool{}
	err = s.each(ctx, "read how far the copy is", fmt.Sprintf("SELECT month, done FROM %s.rebuild_months", s.name), nil, func(rows driver.Rows) error {
		var month uint32
		var is uint8
		err := rows.Scan(&month, &is)
		begun[month] = true
		done[month] = done[month] || is == 1
		return err
	})
	if err != nil {
		return err
	}
	var total, copied uint64
	for _, n := range counts {
		total += n
	}
	for _, month := range months {
		if !done[month] {
			if err := s.copyMonth(ctx, month, older, begun[month]); err != nil {
				return fmt.Errorf("copy the records of %d: %w", month, err)
			}
		}
		copied += counts[month]
		progress(copied, total)
	}
	return nil
}

// olderThan is a condition for rows that a plan does not begin with.
func olderThan(plan []Start) string {
	var newer []string
	for _, p := range plan {
		newer = append(newer, fmt.Sprintf("(lane = %d AND incarnation = %d AND stream_seq >= %d)", p.Lane, p.Incarnation, p.First))
	}
	return "NOT (" + strings.Join(append(newer, "0"), " OR ") + ")"
}

func (s *Shadow) months(ctx context.Context, older string) (months []uint32, counts map[uint32]uint64, err error) {
	counts = map[uint32]uint64{}
	return months, counts, s.each(ctx, "count what is older", fmt.Sprintf(
		"SELECT toYYYYMM(ts) AS month, count() FROM %s.records WHERE %s GROUP BY month ORDER BY month", s.live.name, older), nil, func(rows driver.Rows) error {
		var month uint32
		var n uint64
		err := rows.Scan(&month, &n)
		months, counts[month] = append(months, month), n
		return err
	})
}

func (s *Shadow) copyMonth(ctx context.Context, month uint32, older string, begun bool) error {
	d := s.plain()
	if begun {
		// What is folded may hear of a record twice; what is counted may not.
		for _, statement := range []string{
			fmt.Sprintf("ALTER TABLE %s%s DROP PARTITION %d", d.Table("records"), d.OnCluster(), month),
			fmt.Sprintf("ALTER TABLE %s%s DROP PARTITION %d", d.Table("counts_1m"), d.OnCluster(), month),
			fmt.Sprintf("ALTER TABLE %s%s DELETE WHERE toYYYYMM(day) = %d SETTINGS mutations_sync = 2", d.Table("sources"), d.OnCluster(), month),
		} {
			if err := s.everywhere(ctx, statement); err != nil {
				return err
			}
		}
	}
	if err := s.note(ctx, fmt.Sprintf("INSERT INTO %s.rebuild_months (month, done) VALUES (?, 0)", s.name), month); err != nil {
		return err
	}
	var columns []string
	if err := s.row(ctx, "read the columns of records", "SELECT groupArray(name) FROM system.columns WHERE database = ? AND table = 'records' AND default_kind = ''", []any{s.live.name}, &columns); err != nil {
		return err
	}
	list := strings.Join(columns, ", ")
	inserting, err := s.storing(ctx, clickhouse.Settings{"insert_deduplicate": 0, "optimize_on_insert": 0, "max_partitions_per_insert_block": 0})
	if err != nil {
		return err
	}
	if err := s.exec(inserting, fmt.Sprintf("INSERT INTO %[1]s.records (%[3]s) SELECT %[3]s FROM %[2]s.records WHERE toYYYYMM(ts) = %[4]d AND %[5]s",
		s.name, s.live.name, list, month, older)); err != nil {
		return err
	}
	// Copied. A crash here removes the month and copies it again.
	return s.note(ctx, fmt.Sprintf("INSERT INTO %s.rebuild_months (month, done) VALUES (?, 1)", s.name), month)
}
