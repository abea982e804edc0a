package main

import (
	"context"
	"fmt"
)

// Counters is how counts_1m differs from what it must come to.
type Counters struct {
	Counted int64 // their sum
	Above   int64 // by so many they are above
	Below   int64 // and below

	Named []string // where, a line each
}

// add adds a difference at one place.
func (c *Counters) add(what string, want, got int64) {
	switch {
	case got > want:
		c.Above += got - want
	case got < want:
		c.Below += want - got
	default:
		return
	}
	c.Named = append(c.Named, fmt.Sprintf("counted %d instead of %d: %s", got, want, what))
}

// countersByRows compares counts_1m with records, minute by minute.
// A record that was inserted twice stays in the counters even when the table
// has merged its two rows into one.
const countersByRows = `
SELECT sum(counted), sumIf(counted - rows, counted > rows), sumIf(rows - counted, rows > counted)
FROM (
	SELECT source, minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version, toInt64(sum(r)) AS rows, toInt64(sum(c)) AS counted
	FROM (
		SELECT source, toStartOfMinute(ts) AS minute, tenant_id, value_type, record_type, intent, bpmn_process_id, ifNull(version, 0) AS version, toInt64(count()) AS r, 0 AS c
		FROM records GROUP BY ALL
		UNION ALL
		SELECT source, minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version, 0 AS r, toInt64(sum(records)) AS c
		FROM counts_1m GROUP BY ALL
	)
	GROUP BY ALL
)`

// counters compares the counters with the rows.
func (t *tables) counters(ctx context.Context) (c Counters, err error) {
	if err := t.db.QueryRow(ctx, countersByRows).Scan(&c.Counted, &c.Above, &c.Below); err != nil {
		return c, fmt.Errorf("compare the counters: %w", err)
	}
	return c, nil
}

// countersOf compares the counters of a source with what it knows that they
// must come to.
func (t *tables) countersOf(ctx context.Context, source string, want map[count]int64) (c Counters, err error) {
	rows, err := t.db.Query(ctx, `SELECT minute, value_type, record_type, intent, bpmn_process_id, toInt64(version), toInt64(sum(records))
		FROM counts_1m WHERE source = ? GROUP BY ALL`, source)
	if err != nil {
		return c, fmt.Errorf("read the counters of %s: %w", source, err)
	}
	got := map[count]int64{}
	for rows.Next() {
		var k count
		var n int64
		if err := rows.Scan(&k.Minute, &k.ValueType, &k.RecordType, &k.Intent, &k.Process, &k.Version, &n); err != nil {
			return c, err
		}
		k.Minute = k.Minute.UTC()
		got[k] += n
		c.Counted += n
	}
	for k, n := range want {
		c.add(fmt.Sprintf("%s %+v", source, k), n, got[k])
		delete(got, k)
	}
	for k, n := range got {
		c.add(fmt.Sprintf("%s %+v", source, k), 0, n)
	}
	return c, rows.Err()
}
