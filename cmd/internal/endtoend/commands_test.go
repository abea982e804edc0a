package endtoend

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

func TestOperatorsCommands(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.up()
	record := `{"id":"7-1","key":7,"valueType":"JOB","value":{"bpmnProcessId":"tailed","unknown":[1.50]}}`

	t.Run("tail prints records as they were posted", func(t *testing.T) {
		tail := start(t, "sluice", "tail", "--data", s.data, "--nats", "nats://"+s.nats, "--from", "1")
		if res, body := s.post([]byte(record)); wantOK(res, body) != nil {
			t.Fatal(wantOK(res, body))
		}
		eventually(t, 10*time.Second, func() error {
			return wantText(tail.text(), record+"\n")
		})
		expect.Equal(t, "tail ended with exit", 0, tail.stop())
	})
	t.Run("after ?wait=stored it can be queried", func(t *testing.T) {
		for i := range 3 {
			r := fmt.Sprintf(`{"id":"9-%d","key":9,"valueType":"JOB"}`, i)
			res, body := s.sendWith(http.Header{"Prefer": {"wait=30"}}, "POST", "/flow/flowRecord/batch?wait=stored", []byte(r))
			if wantOK(res, body) != nil || res.Header.Get("Sluice-Stored") != "true" {
				t.Fatalf("%v, Sluice-Stored %q", wantOK(res, body), res.Header.Get("Sluice-Stored"))
			}
			if got, err := s.query("SELECT count() FROM flow.records WHERE key = 9"); err != nil || got != fmt.Sprint(i+1) {
				t.Errorf("after %d: %s, %v", i+1, got, err)
			}
		}
		code, out := run(t, "sluice", "load", "--url", "http://"+s.http, "--data", s.data, "--records", "3000", "--seed", "3", "--wait")
		expect.Not(t, code != 0 || wantText(out, "all could be queried after") != nil, "exit %d: %s", code, out)
		if got, err := s.query("SELECT count() FROM flow.records"); err != nil || got != "3004" {
			t.Errorf("after the load there are %s records, %v; want 3004", got, err)
		}
	})
	t.Run("a load that is stopped before all is acknowledged fails", func(t *testing.T) {
		asked := make(chan struct{}, 1)
		refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			select {
			case asked <- struct{}{}:
			default:
			}
		}))
		defer refuses.Close()
		load := start(t, "sluice", "load", "--url", refuses.URL, "--token-file", filepath.Join(s.data, "token"), "--records", "1000")
		<-asked
		if code := load.stop(); code != 1 || wantText(load.text(), "not acknowledged") != nil {
			t.Errorf("exit %d: %s", code, load.Tail(5))
		}
	})
	t.Run("an event log is exported, also by an analyst without a password", func(t *testing.T) {
		for _, data := range []string{s.data, t.TempDir()} {
			code, out := run(t, "sluice", "export", "--format", "csv", "--out", "-", "--data", data, "--clickhouse-http", s.chHTTP)
			expect.Not(t, code != 0 || wantText(out, "case:concept:name,concept:name,") != nil, "exit %d: %s", code, out)
		}
	})
	t.Run("a question is answered, also for an analyst without a password", func(t *testing.T) {
		for _, data := range []string{s.data, t.TempDir()} {
			code, out := run(t, "sluice", "ask", "usage", "--data", data, "--clickhouse-http", s.chHTTP, "--format", "csv")
			expect.Not(t, code != 0 || wantText(out, "source,month,tenant_id,instances,") != nil, "exit %d: %s", code, out)
		}
	})
	t.Run("lanes are listed and added", func(t *testing.T) {
		code, out := run(t, "sluice", "lanes", "add", "--data", s.data, "--nats", "nats://"+s.nats)
		expect.Not(t, code != 0 || wantText(out, "lane 1") != nil, "exit %d: %s", code, out)
		eventually(t, 10*time.Second, func() error {
			_, out := run(t, "sluice", "lanes", "--data", s.data, "--nats", "nats://"+s.nats)
			if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 6 {
				return wantText(out, "a head and two lanes, a line between, a head and a source")
			}
			return wantText(out, "local   0")
		})
	})
	t.Run("engines get their own tokens, which survive a restart", func(t *testing.T) {
		source := func(want int, args ...string) string {
			t.Helper()
			code, out := run(t, "sluice", append(append([]string{"source"}, args...), "--data", s.data)...)
			fatal.When(t, code != want, "sluice source %v: exit %d, want %d: %s", args, code, want, out)
			return out
		}
		tokenIn := func(out string) string {
			t.Helper()
			_, rest, _ := strings.Cut(out, "(shown once):\n")
			token, _, _ := strings.Cut(rest, "\n")
			return token
		}
		post := func(token string) int {
			res, _ := s.sendWith(http.Header{"Authorization": {token}}, http.MethodPost, "/flow/flowRecord/batch", []byte(record))
			return res.StatusCode
		}
		accepted := func(token string) { // by its first request
			t.Helper()
			if status := post(token); status != http.StatusOK {
				t.Errorf("answered %d, want 200", status)
			}
		}
		rejected := func(token string) {
			t.Helper()
			eventually(t, 10*time.Second, func() error {
				if status := post(token); status != http.StatusUnauthorized {
					return fmt.Errorf("answered %d, want 401", status)
				}
				return nil
			})
		}
		out := source(0, "add", "cluster-a")
		first := tokenIn(out)
		expect.NoError(t, wantText(out, "AUTHENTICATION_PASSWORD="+first))
		accepted(first)
		source(1, "add", "cluster-a")
		source(1, "add", "local")
		p.stop()
		s.up()
		accepted(first)
		second := tokenIn(source(0, "rotate", "cluster-a", "--keep", "0s"))
		accepted(second)
		rejected(first)
		if lines := strings.Split(strings.TrimSpace(source(0, "list")), "\n"); len(lines) != 4 {
			t.Errorf("listed %q, want a head, two tokens of the engine, and the one of sluice up", lines)
		}
		source(0, "remove", "cluster-a")
		rejected(second)
		expect.NoError(t, wantText(source(1, "remove", "cluster-a"), "sluice source add"))
		s.eventuallyQuery(10*time.Second, "SELECT uniqExact(id) FROM flow.records WHERE source = 'cluster-a'", "1")
	})
	t.Run("excluded records are neither stored nor reported missing", func(t *testing.T) {
		args := []string{"source", "add", "sparing", "--exclude", "valueType=JOB_*,intent=ACTIVATE*", "--data", s.data}
		_, out := run(t, "sluice", args...)
		_, rest, _ := strings.Cut(out, "(shown once):\n")
		token, _, _ := strings.Cut(rest, "\n")
		records := `[{"partitionId":5,"position":1,"timestamp":1763701200001,"recordType":"COMMAND","valueType":"JOB","intent":"COMPLETE"},
			{"partitionId":5,"position":2,"timestamp":1763701200002,"recordType":"COMMAND","valueType":"JOB_BATCH","intent":"ACTIVATE"},
			{"partitionId":5,"position":3,"timestamp":1763701200003,"recordType":"COMMAND","valueType":"JOB","intent":"COMPLETE"}]`
		expect.NoError(t, wantOK(s.sendWith(http.Header{"Authorization": {token}}, http.MethodPost, "/flow/flowRecord/batch", []byte(records))))
		s.eventuallyQuery(10*time.Second, "SELECT arraySort(groupArray(position)) FROM flow.records WHERE source = 'sparing'", "[1,3]")
		everything := filepath.Join(t.TempDir(), "tokens.yaml")
		fatal.If(t, os.WriteFile(everything, []byte("[]\n"), 0o600))
		lint := []string{"lint", "--data", s.data, "--clickhouse", "clickhouse://" + s.clickhouse + "/flow"}
		if _, out := run(t, "sluice", lint...); strings.Contains(out, "sparing") {
			t.Errorf("lint misses what is excluded:\n%s", out)
		}
		if _, out := run(t, "sluice", append(lint, "--tokens", everything)...); !strings.Contains(out, "sparing: Positions are missing") {
			t.Errorf("lint with a token file without rules:\n%s", out)
		}
	})
	t.Run("a lane is reset only with --yes", func(t *testing.T) {
		args := []string{"lanes", "reset", "--data", s.data, "--nats", "nats://" + s.nats, "--lane", "1", "--last", "0"}
		if code, out := run(t, "sluice", args...); code != 1 || wantText(out, "--yes") != nil {
			t.Errorf("without --yes: exit %d: %s", code, out)
		}
		code, out := run(t, "sluice", append(args, "--yes")...)
		var checkpoint int
		_, _ = fmt.Sscanf(out, "lane 1: checkpoint %d", &checkpoint)
		if code != 0 || checkpoint == 0 || wantText(out, fmt.Sprintf("resumes after message %d ", checkpoint)) != nil { // the lane has the checkpoint's message
			t.Errorf("with --yes: exit %d: %s", code, out)
		}
	})
	t.Run("a second migrate changes nothing", func(t *testing.T) {
		code, out := run(t, "sluice", "migrate", "--data", s.data, "--clickhouse", "clickhouse://default@"+s.clickhouse+"/flow")
		expect.Not(t, code != 0 || wantText(out, "up to date") != nil, "exit %d: %s", code, out)
	})
	t.Run("tables report their retention, which can be set", func(t *testing.T) {
		args := []string{"migrate", "ttl", "--data", s.data, "--nats", "nats://" + s.nats, "--clickhouse", "clickhouse://default@" + s.clickhouse + "/flow"}
		const before = "flow.records keeps rows 400 days after the day of storage\nflow.counts_1m keeps rows 400 days after the day of storage\nflow.changes keeps rows forever"
		if code, out := run(t, "sluice", args...); code != 0 || wantText(out, before) != nil {
			t.Errorf("exit %d: %s", code, out)
		}
		const then = "flow.records keeps rows forever\nflow.counts_1m keeps rows 400 days after the day of storage\nflow.changes keeps rows 30 days after the day of storage"
		if code, out := run(t, "sluice", append(args, "--keep-records=forever", "--keep-changes=30d")...); code != 0 || wantText(out, then) != nil {
			t.Errorf("exit %d: %s", code, out)
		}
		for position, intent := range []string{"ELEMENT_ACTIVATED", "ELEMENT_COMPLETED"} { // an instance that ended two years ago
			fatal.If(t, wantOK(s.post(fmt.Appendf(nil, `{"partitionId":9,"position":%d,"timestamp":%d,"key":77,"recordType":"EVENT","valueType":"PROCESS_INSTANCE","intent":%q,"value":
				{"bpmnProcessId":"old","bpmnElementType":"PROCESS","elementId":"old","processInstanceKey":77}}`, position+1, time.Now().AddDate(-2, 0, position).UnixMilli(), intent))))
		}
		s.eventuallyQuery(20*time.Second, "SELECT state FROM flow.v_process_instances WHERE process_instance_key = '77'", "COMPLETED") // a later end would stay for days
		const kept = "aggregate tables keep ended instances 365 days after the day of their last event"
		if code, out := run(t, "sluice", append(args, "--keep-instances=365d")...); code != 0 || wantText(out, kept) != nil {
			t.Errorf("exit %d: %s", code, out)
		}
		s.eventuallyQuery(40*time.Second, "SELECT countIf(process_instance_key = '77'), count() > 10 FROM flow.v_process_instances", "0\t1") // the ingester removes it
		if code, out := run(t, "sluice", append(args, "--keep-records=7")...); code == 0 || wantText(out, "use a number of days such as 30d, or forever") != nil {
			t.Errorf("exit %d: %s", code, out)
		}
	})
}

func TestMisspeltSettingsAreRefused(t *testing.T) {
	for _, program := range []string{"api", "ingester", "sluice"} {
		t.Run(program, func(t *testing.T) {
			code, out := run(t, program, "--no-such-flag")
			expect.Not(t, code == 0 || wantText(out, "--no-such-flag") != nil, "an unknown flag: exit %d: %s", code, out)
			cmd := exec.CommandContext(t.Context(), filepath.Join(bin, program), "--help")
			cmd.Env = append(environ(program), "SLUICE_NO_SUCH_THING=1")
			answer, err := cmd.CombinedOutput()
			expect.Not(t, err == nil || wantText(string(answer), "SLUICE_NO_SUCH_THING") != nil, "an unknown variable: %v: %s", err, answer)
			help := map[string]string{"sluice": "up"}[program]
			_, page := run(t, program, strings.Fields(help+" --help")...)
			if err := wantText(page, "$SLUICE_"); err != nil {
				t.Errorf("the help names no variables: %v", err)
			}
		})
	}
}

// TestUpHasTheOptionsOfItsParts: sluice up has all options of the programs, except those
// that it sets itself.
func TestUpHasTheOptionsOfItsParts(t *testing.T) {
	flags := func(args ...string) []string {
		_, page := run(t, args[0], append(args[1:], "--help")...)
		return regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z0-9-]+)`).FindAllString(page, -1)
	}
	const itsOwn = `^(healthcheck|nats-.*|clickhouse-(cluster|single|password-file)|block-.*|tokens|fingerprint-key|jwt-.*|tls-.*)$`
	decided := regexp.MustCompile(itsOwn)
	up := map[string]bool{}
	for _, flag := range flags("sluice", "up") {
		up[flag[strings.Index(flag, "--"):]] = true
	}
	for _, program := range []string{"api", "ingester"} {
		all := flags(program)
		fatal.When(t, len(all) < 20, "%s --help shows %d options", program, len(all))
		for _, flag := range all {
			flag = flag[strings.Index(flag, "--"):]
			expect.Not(t, !up[flag] && !decided.MatchString(strings.TrimPrefix(flag, "--")), "sluice up lacks %s of the %s", flag, program)
		}
	}
}
