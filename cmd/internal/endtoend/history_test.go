package endtoend

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice/pkg/fatal"
	"sluice/pkg/load/simulator"
)

// TestAYearOfHistoryLeaves: an engine's history of two years is loaded, and all but the last
// 365 days of its ended instances are to leave, while records flow. The tables get smaller,
// verify has nothing to say, what runs is whole, and questions about the rest are answered
// as before.
func TestAYearOfHistoryLeaves(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.up()
	now := time.Now().UTC().Truncate(time.Millisecond)
	e := simulator.New(simulator.Config{Seed: 3, Start: now.AddDate(0, 0, -730), Every: 36 * time.Hour, Instances: 480})
	var batch []string
	posted := 0
	post := func(records ...string) {
		t.Helper()
		fatal.If(t, wantOK(s.post([]byte("["+strings.Join(records, ",")+"]"))))
		posted += len(records)
	}
	for r, more := e.NextBy(now); more; r, more = e.NextBy(now) {
		if batch = append(batch, string(r.JSON)); len(batch) == 5000 {
			post(batch...)
			batch = nil
		}
	}
	post(batch...)
	start := func(position int, at time.Time, intent string) string {
		return fmt.Sprintf(`{"partitionId":9,"position":%d,"timestamp":%d,"key":77,"recordType":"EVENT","valueType":"PROCESS_INSTANCE","intent":%q,"value":
			{"bpmnProcessId":"slow","bpmnElementType":"PROCESS","elementId":"slow","processInstanceKey":77,"parentProcessInstanceKey":-1,"flowScopeKey":-1}}`, position, at.UnixMilli(), intent)
	}
	post(start(1, now.AddDate(0, 0, -700), "ELEMENT_ACTIVATED")) // runs since then
	s.eventuallyStored(uint64(posted))

	tables := "database = 'flow' AND table IN (SELECT name FROM system.tables WHERE database = 'flow' AND engine LIKE 'Aggregating%') AND table NOT IN ('sources', 'process_definitions')"
	sizes := func() (rows, bytes int) {
		t.Helper()
		for _, table := range []string{"process_instances", "element_instances", "jobs", "variables", "incidents", "user_tasks", "waits", "decisions"} {
			s.exec("OPTIMIZE TABLE flow." + table + " FINAL") // sizes of merged parts compare
		}
		_, got := s.askAs("admin", s.secret("clickhouse-admin"), "SELECT sum(rows), sum(bytes_on_disk) FROM system.parts WHERE active AND "+tables)
		for i, field := range strings.Fields(got) {
			n, err := strconv.Atoi(field)
			fatal.If(t, err)
			*[]*int{&rows, &bytes}[i] = n
		}
		return rows, bytes
	}
	rows, bytes := sizes()
	from, to := now.AddDate(0, 0, -363), now.AddDate(0, 0, -1)
	rest := func() (all []string) {
		for _, name := range []string{"durations", "incident_rate", "automation_rate", "variants", "workers", "throughput", "user_tasks"} {
			all = append(all, name+"\n"+s.sluice(0, "ask", name, "--from", from.Format(time.RFC3339), "--to", to.Format(time.RFC3339), "--format", "csv", "--clickhouse-http", s.chHTTP))
		}
		got, err := s.query(fmt.Sprintf("SELECT count(), sum(cityHash64(*)) FROM flow.v_process_instances WHERE last_seen >= '%s' AND last_seen < '%s' OR process_instance_key = '77'",
			from.Format(time.DateTime), to.Format(time.DateTime)))
		fatal.If(t, err)
		return append(all, got)
	}
	before := rest()
	ended := fmt.Sprintf("SELECT count() FROM flow.v_process_instances WHERE state != 'ACTIVE' AND last_seen < '%s'", now.AddDate(0, 0, -366).Format(time.DateOnly))
	if n, err := s.query(ended); err != nil || len(n) < 3 {
		t.Fatalf("%s instances are to leave, %v, want some hundreds", n, err)
	}

	acknowledged := s.loading("--duration", "8s", "--rate", "100")
	said := s.sluice(0, "migrate", "ttl", "--keep-instances", "365d", "--clickhouse", "clickhouse://default@"+s.clickhouse+"/flow")
	fatal.If(t, wantText(said, "aggregate tables keep ended instances 365 days after the day on which the last of them happened"))
	s.eventuallyQuery(40*time.Second, ended, "0")
	acknowledged()
	eventually(t, 30*time.Second, func() error {
		if n, b := sizes(); n > rows*9/10 || b > bytes*9/10 {
			return fmt.Errorf("%d rows and %d bytes are there, and were %d and %d", n, b, rows, bytes)
		}
		return nil
	})
	n, b := sizes()
	t.Logf("from %d rows and %d bytes to %d and %d, with what came in meanwhile", rows, bytes, n, b)
	s.verify(0, "--deep")
	if after := rest(); !slices.Equal(before, after) {
		t.Errorf("the rest was\n%s\nand is\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	if out := s.sluice(0, "lint", "--clickhouse", "clickhouse://default@"+s.clickhouse+"/flow"); strings.Contains(out, "no beginning") {
		t.Errorf("lint says\n%s", out)
	}
}
