package warehouse_test

import (
	"strings"
	"testing"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/warehouse"
)

// TestBusinessKeysOfAVariable: records stored after the variable was named give keys, even from a
// program without the setting; a rebuild includes all records.
func TestBusinessKeysOfAVariable(t *testing.T) {
	t.Parallel()
	name, url := clickhousetest.FreshDatabase(t)
	with := func(key string) *warehouse.DB {
		db := openURL(t, url, key)
		fatal.If(t, db.Migrate(t.Context()))
		return db
	}
	seq := uint64(0)
	add := func(db *warehouse.DB, instance int64, intent string, scope, key int64, value string) {
		m := &handmade{}
		m.instance(0, 0, instance, -1)
		m.event(int64(seq), "VARIABLE", intent, key, `"name":"order","value":%q,"scopeKey":%d,"processInstanceKey":%d,"bpmnProcessId":"p"`, value, scope, instance)
		seq++
		for i := range m.records { // distinct positions
			m.records[i] = strings.Replace(m.records[i], `"position":`, `"position":1`+strings.Repeat("0", int(seq)), 1)
		}
		fatal.If(t, db.Insert(t.Context(), block(t, 0, seq, m.records...)))
	}
	plain := with("")
	add(plain, 7, "CREATED", 7, 70, `"A-1"`)
	with(`it's \`) // another name is replaced
	named := with("order")
	add(named, 8, "UPDATED", 8, 80, `"A-5"`)
	add(named, 8, "CREATED", 20, 81, `"of an inner scope"`)
	add(named, 9, "CREATED", 9, 90, `"draft"`)
	add(named, 9, "UPDATED", 9, 90, `17`)
	add(named, 10, "CREATED", 10, 100, `null`)
	add(with(""), 11, "CREATED", 11, 110, `"K"`)
	m := &handmade{}
	m.event(hour, "PROCESS_INSTANCE_CREATION", "CREATED", 1, `"processInstanceKey":11,"businessId":"~B"`)
	fatal.If(t, named.Insert(t.Context(), block(t, 0, 99, m.records...)))

	const keys = "SELECT groupArray((process_instance_key, business_key, processes)) FROM (SELECT * FROM {db}.v_process_instances ORDER BY toInt64(process_instance_key))"
	expect.Equal(t, "keys", "[('7','',['p']),('8','A-5',['p']),('9','17',['p']),('10','',['p']),('11','~B',['p'])]", query(t, named, keys))
	shadow, err := plain.Shadow(name + "_rebuilt")
	fatal.If(t, err)
	fatal.If(t, shadow.Prepare(t.Context()))
	t.Cleanup(func() { query(t, shadow.DB, "DROP DATABASE {db}") })
	fatal.If(t, shadow.Copy(t.Context(), nil, func(uint64, uint64) {}))
	expect.Equal(t, "rebuilt", "[('7','A-1',['p']),('8','A-5',['p']),('9','17',['p']),('10','',['p']),('11','~B',['p'])]", query(t, shadow.DB, keys))
}
