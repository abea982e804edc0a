package endtoend

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/cmd/internal/backup"
	"sluice/pkg/fatal"
)

// exporter is an engine of three partitions. It sends all records in order, and can
// resend them.
type exporter struct {
	stack *stack
	began time.Time
	sent  [4]int // last acknowledged position by partition
}

func (e *exporter) record(partition, position int) string {
	return fmt.Sprintf(`{"partitionId":%d,"position":%d,"key":%d,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","timestamp":%d,"value":{"bpmnProcessId":"order","processInstanceKey":%d,"type":"pay"}}`,
		partition, position, partition*1_000_000+position, e.began.UnixMilli()+int64(position), partition*1_000_000+position/10)
}

// send sends positions from..to of a partition, size records per request.
func (e *exporter) send(partition, from, to, size int) error {
	for ; from <= to; from += size {
		var batch []string
		for position := from; position < from+size && position <= to; position++ {
			batch = append(batch, e.record(partition, position))
		}
		if err := e.stack.accepts("[" + strings.Join(batch, ",") + "]"); err != nil {
			return err
		}
		e.sent[partition] = max(e.sent[partition], from+len(batch)-1)
	}
	return nil
}

// accepts posts a body that must be accepted. It can run in any goroutine.
func (s *stack) accepts(body string) error {
	req, err := http.NewRequest(http.MethodPost, "http://"+s.http+"/flow/flowRecord/batch", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", s.token)
	res, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if answer, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s, %v", res.Status, answer, err)
	}
	return nil
}

// sending sends new records until the returned function is called.
func (e *exporter) sending() (stop func() error) {
	end, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			for partition := 1; partition <= 3; partition++ {
				if err := e.send(partition, e.sent[partition]+1, e.sent[partition]+20, 20); err != nil {
					ended <- err
					return
				}
			}
			select {
			case <-end:
				ended <- nil
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return func() error {
		close(end)
		return <-ended
	}
}

// servers returns the addresses for an operator's command.
func (s *stack) servers() []string {
	return []string{"--nats", "nats://" + s.nats, "--clickhouse", "clickhouse://default@" + s.clickhouse + "/flow"}
}

// held reads the manifest that backup or restore prints.
func held(t *testing.T, out string) (m backup.Manifest) {
	t.Helper()
	for line := range strings.Lines(out) { // log lines may come before
		if strings.HasPrefix(line, `{"format"`) {
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatalf("%v in:\n%s", err, out)
			}
			return m
		}
	}
	t.Fatalf("no manifest in:\n%s", out)
	return m
}

// again repeats a command and kills it when the first of the files exists, then the next.
// It returns the output of the run that completes.
func again(t *testing.T, files []string, args ...string) string {
	t.Helper()
	kills := 0
	for {
		p := start(t, "sluice", args...)
		killed := false
		for len(files) > 0 && !killed {
			select {
			case <-p.Exited():
				files = nil
			case <-time.After(time.Millisecond):
				if there, _ := filepath.Glob(files[0]); len(there) > 0 {
					p.kill()
					files, killed = files[1:], true
					kills++
				}
			}
		}
		if killed {
			continue
		}
		if code := p.wait(3 * time.Minute); code != 0 {
			t.Fatalf("sluice %v: exit %d", args, code)
		}
		if kills == 0 {
			t.Errorf("sluice %s was never killed", args[0])
		}
		t.Logf("sluice %s was killed %d times", args[0], kills)
		return p.text()
	}
}

// TestABackupUnderTrafficIsRestored: backup under traffic, and restore, both killed on
// the way. Then exporters resend from the positions that restore names, while new records
// arrive. No record is lost, duplicated or counted twice, and forgotten records stay
// forgotten.
func TestABackupUnderTrafficIsRestored(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.up()
	e := &exporter{stack: s, began: time.Now().Add(-time.Hour)}
	for partition := 1; partition <= 3; partition++ {
		fatal.If(t, e.send(partition, 1, 500, 100))
	}
	fatal.If(t, wantOK(s.send(http.MethodPatch, "/spm/login/current/user", `{"name":"Ann"}`)))
	others := func(s *stack) { // identified by content, and by the request's key
		t.Helper()
		for key, body := range map[string]string{"a": `{"id":"note","valueType":"NOTE","timestamp":1700000000000}`, "b": `[{"intent":"nameless"},{"intent":"nameless"}]`} {
			fatal.If(t, wantOK(s.sendWith(http.Header{"Idempotency-Key": {key}}, http.MethodPost, "/flow/flowRecord/batch", []byte(body))))
		}
	}
	others(s)
	s.eventuallyQuery(20*time.Second, "SELECT count() FROM flow.records", "1503")
	const gone = 10 // records of an instance, which leave a gap in a message
	s.sluice(0, append([]string{"forget", "--instance", "1000005", "--running", "--yes"}, s.servers()...)...)

	stop := e.sending()
	copied := filepath.Join(t.TempDir(), "backup")
	args := append([]string{"backup", "--json", "--to", copied, "--data", s.data}, s.servers()...)
	m := held(t, again(t, []string{
		filepath.Join(copied, "streams", "KV_flow_state.*"), // while the lanes are held
		filepath.Join(copied, "streams", "FLOW_DEAD.*"), filepath.Join(copied, "tables", "records", "*"),
	}, args...))
	fatal.If(t, stop())
	fatal.If(t, wantOK(s.post([]byte(`{"intent":"never to be seen again"}`))))
	if code := p.stop(); code != 0 {
		t.Fatalf("stopped with exit %d", code)
	}
	if token, err := os.ReadFile(filepath.Join(copied, "secrets")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the backup has secrets without --with-secrets: %s, %v", token, err)
	}

	r := newStack(t)
	restored := held(t, again(t, []string{
		filepath.Join(r.data, "clickhouse", "*", "flow"), filepath.Join(r.data, "nats", "jetstream", "*", "streams", "FLOW_DEAD"),
	}, "restore", "--json", "--from", copied, "--into", r.data))
	fatal.When(t, restored.ID != m.ID || len(restored.Resend) != 4, "restored %+v, want %+v", restored, m)
	r.up()
	after := &exporter{stack: r, began: e.began, sent: e.sent}
	stop = after.sending() // engines do not wait
	for _, reach := range restored.Resend {
		if reach.Partition == 0 {
			continue
		}
		if reach.From > reach.Last+1 || reach.Last < 500 || int(reach.Last) > e.sent[reach.Partition] {
			t.Errorf("%+v of what was sent up to %v", reach, e.sent)
		}
		from := exporter{stack: r, began: e.began}
		fatal.If(t, from.send(int(reach.Partition), int(reach.From), e.sent[reach.Partition], 37))
	}
	others(r)
	fatal.If(t, stop())
	n := after.sent[1] + after.sent[2] + after.sent[3]
	r.eventuallyQuery(30*time.Second, `SELECT count(), uniqExact(partition_id, position), countIf(intent = 'nameless'), (SELECT sum(records) FROM flow.counts_1m), (SELECT sum(rows) FROM flow.sources),
		(SELECT uniqExact(key) FROM flow.v_jobs) FROM flow.records`, fmt.Sprintf("%d\t%d\t2\t%[1]d\t%[3]d\t%[4]d", n+3-gone, n+1-gone, n+3, n-gone))
	eventually(t, 20*time.Second, func() error {
		if total := r.verify(0, "--deep").Total(); total.Waiting > 0 || total.Repeated == 0 {
			return fmt.Errorf("%+v", total)
		}
		return nil
	})
	if res, body := r.send(http.MethodGet, "/spm/login/current/user", ""); res.StatusCode != http.StatusOK || !strings.Contains(body, `"Ann"`) {
		t.Errorf("the user is %s %s", res.Status, body)
	}
}

// TestARestoreWritesOverNothing: into servers by address, empty or not; from a damaged
// backup, or one of a later version.
func TestARestoreWritesOverNothing(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	server, engine, api, ingester := s.apart()
	e := &exporter{stack: s, began: time.Now().Add(-time.Hour)}
	fatal.If(t, e.send(1, 1, 300, 50))
	s.eventuallyQuery(20*time.Second, "SELECT count() FROM flow.records", "300")
	copied := filepath.Join(t.TempDir(), "backup")
	s.sluice(0, append([]string{"backup", "--to", copied}, s.servers()...)...)
	wants := func(says string, args ...string) {
		t.Helper()
		if out := s.sluice(1, args...); !strings.Contains(out, says) {
			t.Errorf("sluice %s says %s, want %q in it", strings.Join(args, " "), out, says)
		}
	}
	restore := append([]string{"restore", "--from", copied}, s.servers()...)
	wants("complete backup of", append([]string{"backup", "--to", copied}, s.servers()...)...)
	wants("is not empty: table", restore...)
	full := t.TempDir()
	fatal.If(t, os.WriteFile(filepath.Join(full, "mine"), nil, 0o600))
	wants("is not empty, it has mine", "restore", "--from", copied, "--into", full)
	stopped := func(p *process) {
		t.Helper()
		if code := p.stop(); code != 0 {
			t.Fatalf("%s: exit %d", p.name, code)
		}
	}
	stopped(engine)
	s.empty = true
	fatal.If(t, os.RemoveAll(filepath.Join(s.data, "clickhouse")))
	s.startEngine()
	s.eventuallyQuery(30*time.Second, "SELECT 1", "1")
	wants("an ingester is connected to these NATS servers", restore...)
	stopped(ingester)
	stopped(api)
	wants("exists, with", restore...)
	stopped(server)
	fatal.If(t, os.RemoveAll(filepath.Join(s.data, "nats")))
	s.startNATS()
	manifest := filepath.Join(copied, "manifest.json")
	was, err := os.ReadFile(manifest)
	fatal.If(t, err)
	fatal.If(t, os.WriteFile(manifest, []byte(strings.Replace(string(was), `"format": 1`, `"format": 2`, 1)), 0o600))
	wants("has format 2", restore...)
	fatal.If(t, os.WriteFile(manifest, was, 0o600))
	snapshot := filepath.Join(copied, "streams", "FLOW_0.snapshot")
	content, err := os.ReadFile(snapshot)
	fatal.If(t, err)
	content[len(content)/2] ^= 1
	fatal.If(t, os.WriteFile(snapshot, content, 0o600))
	wants("FLOW_0.snapshot has another checksum", restore...)
	content[len(content)/2] ^= 1
	fatal.If(t, os.WriteFile(snapshot, content, 0o600))

	s.sluice(0, restore...)
	s.startAPIWith(s.tokenFile())
	s.waitReady(s.startIngester(), s.ingesterOps, s.ops)
	fatal.If(t, e.send(1, 250, 400, 13))
	s.eventuallyQuery(20*time.Second, "SELECT count(), uniqExact(position), (SELECT sum(records) FROM flow.counts_1m) FROM flow.records", "400\t400\t400")
	eventually(t, 20*time.Second, func() error {
		if total := s.verify(0, "--deep").Total(); total.Waiting > 0 || total.Repeated != 51 {
			return fmt.Errorf("%+v", total)
		}
		return nil
	})
}
