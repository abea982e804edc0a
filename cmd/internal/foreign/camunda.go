package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/auth"
	"sluice/pkg/programtest"
)

// broker is a real Camunda broker. Its two exporters post to Sluice, each as its own
// source, configured as in docs/camunda.md. A third exporter (clients/Journal.java) writes
// the broker's log to a file. The check runs a process (clients/Camunda.java), and
// compares stored records with the log, and tables with the executed steps. Then it kills
// the broker, which resumes from its last acknowledgement, and compares again.
type broker struct {
	version string
	home    string // of the distribution
	checks  string // folder of Camunda.java
	jdk     string
	dir     string // data and logs of this broker
	env     map[string]string

	gateway string // address
	witness *witness
	sources []exporting
	done    ran
}

type exporting struct {
	class, source, token string
}

// ran counts the executed steps of all rounds.
type ran struct {
	Instances, Completed, Canceled, Active, Incidents, Resolved, Failures int
}

// instances is the number of instances per round.
const instances = 10

// check runs the broker and compares. After an error it continues with independent checks.
func (b broker) check(ctx context.Context, dir string, env map[string]string) (r result) {
	b.env, b.dir = env, filepath.Join(dir, "camunda-"+b.version)
	say := func(name string, err error) bool {
		if err != nil {
			r.failed = append(r.failed, name+": "+err.Error())
			return false
		}
		r.ok++
		return true
	}
	if !say("prepare", b.prepare(ctx)) {
		return r
	}
	defer b.witness.Close()
	var running *programtest.Process
	defer func() {
		if running != nil {
			running.Kill() // its data is not needed any more
		}
	}()
	for _, round := range []string{"first", "second"} {
		var err error
		if running, err = b.start(round); !say(round+" start", err) {
			return r
		}
		if !say(round+" round of the process", b.play(ctx, round)) {
			r.failed = append(r.failed, running.Tail(40))
			return r
		}
		for _, e := range b.sources {
			say(fmt.Sprintf("%s round, every record of %s is stored once", round, e.class), b.eventually(ctx, func() error { return b.records(ctx, e) }))
			say(fmt.Sprintf("%s round, the tables of %s match the executed steps", round, e.class), b.eventually(ctx, func() error { return b.tables(ctx, e) }))
		}
		if round == "first" {
			running.Kill()
		}
	}
	for _, e := range b.sources {
		n, kinds, err := b.omitted()
		again := b.witness.sent(e.source) - n
		if err == nil && again <= 0 {
			err = fmt.Errorf("it resent only %d documents: too few to prove deduplication", again)
		}
		say(e.class+": after the kill it resends records", err)
		r.notes = append(r.notes, fmt.Sprintf("%s: %d records, %d of them sent again after the kill, each stored once; not sent: %s", e.class, n, again, strings.Join(kinds, ", ")))
		for _, how := range b.witness.requests(e.source) {
			r.notes = append(r.notes, fmt.Sprintf("%s: %s", e.class, how))
		}
	}
	for _, what := range b.witness.refusals() {
		r.notes = append(r.notes, "not taken: "+what)
	}
	return r
}

// prepare finds Java, builds the log's exporter, and creates tokens of two sources.
func (b *broker) prepare(ctx context.Context) (err error) {
	if b.jdk, err = findJDK(ctx, 21); err != nil {
		return err
	}
	for _, folder := range []string{"classes", "journal", "data"} {
		if err := os.MkdirAll(filepath.Join(b.dir, folder), 0o700); err != nil {
			return err
		}
	}
	compile := exec.CommandContext(ctx, filepath.Join(b.jdk, "bin/javac"), "-proc:none", "-cp", b.classPath(), "-d", filepath.Join(b.dir, "classes"),
		filepath.Join(b.checks, "Journal.java"), filepath.Join(b.checks, "Camunda.java"))
	if out, err := compile.CombinedOutput(); err != nil {
		return fmt.Errorf("compile: %w\n%s", err, out)
	}
	pack := exec.CommandContext(ctx, filepath.Join(b.jdk, "bin/jar"), "cf", filepath.Join(b.dir, "journal.jar"), "-C", filepath.Join(b.dir, "classes"), "Journal.class")
	if out, err := pack.CombinedOutput(); err != nil {
		return fmt.Errorf("pack: %w\n%s", err, out)
	}
	b.sources = []exporting{
		{class: "io.camunda.zeebe.exporter.ElasticsearchExporter", source: "elastic-" + b.version, token: auth.NewToken()},
		{class: "io.camunda.zeebe.exporter.opensearch.OpensearchExporter", source: "opensearch-" + b.version, token: auth.NewToken()},
	}
	if b.witness, err = newWitness(b.env["ELASTIC"]); err != nil {
		return err
	}
	for _, e := range b.sources {
		if err := addToken(ctx, b.env, e.source, e.token); err != nil {
			return err
		}
	}
	return nil
}

func (b *broker) classPath() string { return filepath.Join(b.home, "lib", "*") }

func findJDK(ctx context.Context, minVersion int) (string, error) {
	homes, err := filepath.Glob("/usr/lib/jvm/*")
	if err != nil {
		return "", err
	}
	version := regexp.MustCompile(`version "(\d+)`)
	for _, home := range append([]string{os.Getenv("JAVA_HOME")}, homes...) {
		said, err := exec.CommandContext(ctx, filepath.Join(home, "bin/java"), "-version").CombinedOutput()
		if home == "" || err != nil {
			continue // no JDK
		}
		if m := version.FindSubmatch(said); m != nil {
			if n, err := strconv.Atoi(string(m[1])); err == nil && n >= minVersion {
				return home, nil
			}
		}
	}
	return "", fmt.Errorf("no Java %d or later: set JAVA_HOME, or install a JDK", minVersion)
}

// port returns a port that is free for TCP and UDP; brokers use both. Its range is not
// that of programtest.Address.
func port() int {
	for {
		n := 30_000 + rand.IntN(2_700)
		udp, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", n))
		if err != nil {
			continue
		}
		tcp, err := net.Listen("tcp", udp.LocalAddr().String())
		udp.Close()
		if err != nil {
			continue
		}
		tcp.Close()
		return n
	}
}

// start starts the broker on its existing log.
func (b *broker) start(round string) (*programtest.Process, error) {
	_, gateway, _ := strings.Cut(programtest.Address(), ":")
	b.gateway = "127.0.0.1:" + gateway
	exporters := map[string]any{
		"journal": map[string]any{"className": "Journal", "jarPath": filepath.Join(b.dir, "journal.jar"), "args": map[string]any{"folder": filepath.Join(b.dir, "journal")}},
	}
	for i, e := range b.sources {
		exporters[fmt.Sprint("sluice", i)] = map[string]any{"className": e.class, "args": map[string]any{
			"url": b.witness.URL, "authentication": map[string]any{"username": e.source, "password": e.token},
		}}
	}
	settings, err := json.Marshal(map[string]any{ // JSON is YAML
		"server":     map[string]any{"port": port(), "address": "127.0.0.1"},
		"management": map[string]any{"server": map[string]any{"port": port()}},
		"zeebe": map[string]any{"broker": map[string]any{
			"gateway":   map[string]any{"enable": true, "network": map[string]any{"host": "127.0.0.1", "port": gateway}},
			"network":   map[string]any{"host": "127.0.0.1", "commandApi": map[string]any{"port": port()}, "internalApi": map[string]any{"port": port()}},
			"data":      map[string]any{"directory": filepath.Join(b.dir, "data"), "logSegmentSize": "16MB"},
			"cluster":   map[string]any{"partitionsCount": 2},
			"exporters": exporters,
		}},
	})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(b.dir, "application.yaml")
	if err := os.WriteFile(file, settings, 0o600); err != nil {
		return nil, err
	}
	p := programtest.New(b.dir, "broker-"+round, "env", "JAVA_HOME="+b.jdk, "JAVACMD="+filepath.Join(b.jdk, "bin/java"),
		"JAVA_OPTS=-Xmx768m -Dspring.config.additional-location=file:"+file, filepath.Join(b.home, "bin/broker"))
	return p, p.Start()
}

// play runs the process, and adds its steps to done.
func (b *broker) play(ctx context.Context, round string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(b.jdk, "bin/java"), "-Xmx256m", "-cp", filepath.Join(b.dir, "classes")+":"+b.classPath(), "Camunda",
		b.gateway, filepath.Join(b.dir, "journal"), filepath.Join(b.checks, "order.bpmn"), fmt.Sprint(instances), round)
	var said, trouble bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &trouble
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, lastLines(trouble.String(), 15))
	}
	lines := strings.Split(strings.TrimSpace(said.String()), "\n")
	var r ran
	if _, err := fmt.Sscan(lines[len(lines)-1], &r.Instances, &r.Completed, &r.Canceled, &r.Active, &r.Incidents, &r.Resolved, &r.Failures); err != nil {
		return fmt.Errorf("parse its output %q: %w", said.String(), err)
	}
	b.done.Instances += r.Instances
	b.done.Completed += r.Completed
	b.done.Canceled += r.Canceled
	b.done.Active += r.Active
	b.done.Incidents += r.Incidents
	b.done.Resolved += r.Resolved
	b.done.Failures += r.Failures
	return nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n    ")
}

// logged is a record of the broker's log.
type logged struct {
	PartitionID int64 `json:"partitionId"`
	Position    int64
	Key         int64
	Timestamp   int64
	RecordType  string
	ValueType   string
	Intent      string
}

func (l logged) String() string {
	return fmt.Sprintf("%d-%d %d %d %s %s %s", l.PartitionID, l.Position, l.Key, l.Timestamp, l.RecordType, l.ValueType, l.Intent)
}

// log reads the broker's log, without an incomplete last line.
func (b *broker) log() (map[logged]bool, error) {
	files, err := filepath.Glob(filepath.Join(b.dir, "journal", "partition-*"))
	if err != nil {
		return nil, err
	}
	all := map[logged]bool{}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		lines := bufio.NewReader(file)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				break
			}
			var l logged
			if err := json.Unmarshal(line, &l); err != nil {
				return nil, errors.Join(fmt.Errorf("%s: %w", name, err), file.Close())
			}
			all[l] = true
		}
		file.Close()
	}
	return all, nil
}

// omits are the record kinds that an exporter does not send by default.
var omits = []string{"JOB_BATCH", "MESSAGE_BATCH", "PROCESS_INSTANCE_BATCH", "PROCESS_EVENT", "CHECKPOINT"}

func exported(l logged) bool {
	return l.RecordType == "EVENT" && !slices.Contains(omits, l.ValueType)
}

// records compares a source's rows with the log: one row for each exported record.
func (b *broker) records(ctx context.Context, e exporting) error {
	log, err := b.log()
	if err != nil {
		return err
	}
	rows, err := b.ask(ctx, fmt.Sprintf(`SELECT concat(toString(partition_id), '-', toString(position), ' ', toString(key), ' ', toString(toUnixTimestamp64Milli(ts)), ' ', record_type, ' ', value_type, ' ', intent) FROM flow.records WHERE source = '%s'`, e.source))
	if err != nil {
		return err
	}
	stored := map[string]int{}
	for _, row := range strings.Fields(strings.ReplaceAll(rows, " ", "\x00")) {
		stored[strings.ReplaceAll(row, "\x00", " ")]++
	}
	for l := range log {
		if !exported(l) {
			continue
		}
		if n := stored[l.String()]; n != 1 {
			return fmt.Errorf("%v of the log has %d rows", l, n)
		}
		delete(stored, l.String())
	}
	for row := range stored {
		return fmt.Errorf("%s is stored, but is not in the log or should not be sent", row)
	}
	return nil
}

// omitted returns the number of exported records, and the kinds of the other events.
func (b *broker) omitted() (sent int, kinds []string, err error) {
	log, err := b.log()
	found := map[string]bool{}
	for l := range log {
		switch {
		case exported(l):
			sent++
		case l.RecordType == "EVENT":
			found[l.ValueType] = true
		default:
			found[l.RecordType] = true
		}
	}
	return sent, slices.Sorted(maps.Keys(found)), err
}

// tables compares the views with the executed steps.
func (b *broker) tables(ctx context.Context, e exporting) error {
	want := fmt.Sprintf("%d %d %d %d %d %d %d", b.done.Instances, b.done.Completed, b.done.Canceled, b.done.Active, b.done.Incidents, b.done.Resolved, b.done.Failures)
	got, err := b.ask(ctx, fmt.Sprintf(`SELECT arrayStringConcat(arrayMap(n -> toString(n), [
		(SELECT count() FROM flow.v_process_instances WHERE source = '%[1]s'),
		(SELECT count() FROM flow.v_process_instances WHERE source = '%[1]s' AND state = 'COMPLETED'),
		(SELECT count() FROM flow.v_process_instances WHERE source = '%[1]s' AND state = 'CANCELED'),
		(SELECT count() FROM flow.v_process_instances WHERE source = '%[1]s' AND state = 'ACTIVE'),
		(SELECT count() FROM flow.v_incidents WHERE source = '%[1]s'),
		(SELECT countIf(NOT open) FROM flow.v_incidents WHERE source = '%[1]s'),
		(SELECT sum(failures) FROM flow.v_jobs WHERE source = '%[1]s')]), ' ')`, e.source))
	if err == nil && got != want {
		err = fmt.Errorf("instances, completed, canceled, active, incidents, resolved, job failures are %s, want %s", got, want)
	}
	if err != nil {
		return err
	}
	waits, err := b.ask(ctx, fmt.Sprintf(`SELECT concat(toString((SELECT countIf(state = 'TRIGGERED') FROM flow.v_timers WHERE source = '%[1]s') >= %[2]d), ' ',
		toString((SELECT countIf(state = 'CORRELATED') FROM flow.v_message_waits WHERE source = '%[1]s')))`, e.source, b.done.Completed))
	if want := fmt.Sprint("1 ", b.done.Completed); err == nil && waits != want {
		err = fmt.Errorf("enough timers triggered, messages correlated: %s, want %s", waits, want)
	}
	return err
}

// eventually retries until success: the exporters flush every 5 s.
func (b *broker) eventually(ctx context.Context, try func() error) (err error) {
	for deadline := time.Now().Add(90 * time.Second); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(500 * time.Millisecond) {
		if err = try(); err == nil {
			return nil
		}
	}
	return err
}

func (b *broker) ask(ctx context.Context, sql string) (string, error) {
	return deployment.Ask(ctx, fmt.Sprintf("http://%s:%s/", b.env["HOST"], b.env["HTTP_PORT"]), "", "", sql)
}
