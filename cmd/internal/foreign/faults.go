package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/deployment"
	jetstreams "sluice/pkg/broker"
	"sluice/pkg/lease"
	"sluice/pkg/stream"
)

// fault is a fault of one of the two deployments.
type fault struct {
	name  string
	must  []string      // alerts that it must raise
	may   []string      // alerts that may follow: late records and answers
	apart time.Duration // until the next fault; 0: two minutes
	do    func(a *alarms, ctx context.Context) error
}

// late are the alerts for late or missing records or answers.
var late = []string{"FreshnessBurnsFast", "AckBurnsFast", "LagOld", "ApiErrors", "NotReady", "SluiceDown", "LaneWithoutOwner", "EngineDied"}

// frequent are the faults of `sluice up` that are injected in turn, repeatedly; once is the first one of all.
var frequent = []fault{
	{name: "kill the engine", must: []string{"EngineDied"}, may: late, do: func(a *alarms, _ context.Context) error { return a.d.SignalEngine(syscall.SIGKILL) }},
	{name: "freeze the engine for 90 s", must: []string{"NotReady"}, may: late, do: func(a *alarms, ctx context.Context) error {
		if err := a.d.SignalEngine(syscall.SIGSTOP); err != nil {
			return err
		}
		a.hold(ctx)
		return a.d.SignalEngine(syscall.SIGCONT)
	}},
	{name: "fill the disk for 90 s", must: []string{"DiskAlmostFull"}, may: late, do: func(a *alarms, ctx context.Context) error {
		held := make(chan struct{})
		go func() { defer close(held); a.hold(ctx) }()
		for {
			if err := a.fill(); err != nil {
				return err
			}
			select {
			case <-held:
				return a.resize(diskSize)
			case <-time.After(200 * time.Millisecond): // retried, because deletions free space meanwhile
			}
		}
	}},
	{name: "a client without a good token", must: []string{"ClientRejected"}, do: func(a *alarms, ctx context.Context) error {
		for range 60 {
			_, _ = a.post(ctx, a.d.URL+"/flow/flowRecord/batch", "no-token", "[]") // rejected
			a.sleep(ctx, 1500*time.Millisecond)
		}
		return nil
	}},
	{name: "thirty documents that are no records", must: []string{"DeadLetters"}, do: func(a *alarms, ctx context.Context) error {
		status, err := a.post(ctx, a.d.Elastic+"/_bulk", a.d.Token, junk(30, 20))
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("the bulk is answered %d", status)
		}
		return err
	}},
}

var once = fault{name: "an incident, and a timer that is overdue", must: []string{"IncidentsOpen", "WorkOverdue"}, do: func(a *alarms, ctx context.Context) error {
	const of = `"processInstanceKey":2251799813685255,"elementInstanceKey":2251799813685264,"processDefinitionKey":2251799813685250,"bpmnProcessId":"order","elementId":"work"`
	_, err := a.post(ctx, a.d.URL+"/flow/flowRecord/batch", a.d.Token, "["+a.record("PROCESS_INSTANCE", "ELEMENT_ACTIVATED", `{"bpmnElementType":"PROCESS",`+of+`}`)+","+
		a.record("INCIDENT", "CREATED", `{"errorType":"JOB_NO_RETRIES","errorMessage":"no",`+of+`}`)+","+
		a.record("TIMER", "CREATED", `{"targetElementId":"work","repetitions":1,"dueDate":`+strconv.FormatInt(time.Now().Add(-time.Hour).UnixMilli(), 10)+`,`+of+`}`)+"]")
	return err
}}

// ofPrograms are the faults of the deployment of several programs, with small disk budgets of the lane and dead letters.
var ofPrograms = []fault{
	{name: "a token file that is cut, for six and a half minutes", must: []string{"TokensStale"}, apart: 8 * time.Minute, do: (*alarms).cutTokens},
	{name: "an ingester that holds the lane and reads nothing, for 100 s", must: []string{"LaneWithoutOwner"}, may: late, apart: 4 * time.Minute, do: (*alarms).holdLane},
	{name: "kill the api, for two minutes", must: []string{"SluiceDown"}, may: late, apart: 4 * time.Minute, do: func(a *alarms, ctx context.Context) error {
		a.d.Process(deployment.API).Kill()
		a.sleep(ctx, 2*time.Minute)
		return a.d.Start(ctx)
	}},
	{name: "stop NATS for two minutes", must: []string{"ServerDown", "NotReady", "ApiErrors"}, may: late, apart: 10 * time.Minute, do: func(a *alarms, ctx context.Context) error {
		err := a.d.Process(deployment.NATS).Stop()
		a.sleep(ctx, 2*time.Minute)
		return errors.Join(err, a.d.Start(ctx))
	}},
	{name: "six sources post documents that are no records until refused", must: []string{"DeadLetters", "DeadLettersTight"}, apart: 6 * time.Minute, do: (*alarms).fillDead},
	{name: "NATS answers the api 0.3 s late, for four minutes of 60 posts at once", must: []string{"AckBurnsFast"}, may: late, apart: 8 * time.Minute, do: func(a *alarms, ctx context.Context) error {
		link := a.d.Links["api"+deployment.ToNATS]
		link.Delay(150 * time.Millisecond) // in both directions
		defer link.Delay(0)
		return a.flood(ctx, 4*time.Minute, 60, 100)
	}},
	{name: "NATS loses the stream of the lane, for two minutes", must: []string{"LaneHalted", "ChangesHalted"}, may: late, apart: 4 * time.Minute, do: (*alarms).loseLane},
	{name: "a table of ClickHouse is away for 20 minutes, under load", may: []string{"AckBurnsFast"}, apart: 24 * time.Minute, do: (*alarms).halt,
		must: []string{"LaneHalted", "NotReady", "LagOld", "DiskBudgetUsedUpSoon", "DiskBudgetAlmostUsedUp", "ApiRejecting", "FreshnessBurnsFast"}},
	{name: "the table loses its rows", must: []string{"RecordsLostInTable"}, may: []string{"LaneHalted", "NotReady", "LagOld"}, apart: 4 * time.Minute, do: func(a *alarms, ctx context.Context) error {
		ingester := a.d.Process(deployment.Ingester)
		return errors.Join(ingester.Stop(), a.d.Exec(ctx, "TRUNCATE TABLE flow.records"), a.d.Start(ctx))
	}},
}

// diskSize is the size of the disk of sluice up, in memory. The disk budgets of the other deployment's lane and dead letters
// are filled.
const (
	diskSize   = "24g"
	laneBudget = 32 << 20
	deadBudget = 8 << 20
)

// quiet is a source that posts every minute for an hour.
const quiet = "quiet"

func (a *alarms) data() string { return filepath.Join(a.d.Dir, "data") }

// fill shrinks the disk to its used size.
func (a *alarms) fill() error {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(a.data(), &stat); err != nil {
		return err
	}
	err := a.resize(fmt.Sprint((stat.Blocks-stat.Bfree)*uint64(stat.Bsize) + 64<<10))
	if errors.Is(err, syscall.EINVAL) { // more was written meanwhile
		return nil
	}
	return err
}

func (a *alarms) resize(size string) error {
	return syscall.Mount("", a.data(), "", syscall.MS_REMOUNT, "size="+size)
}

// noise returns n characters that do not compress well.
func noise(n int) string {
	b := make([]byte, n*3/4+1)
	_, _ = rand.Read(b)
	return base64.RawURLEncoding.EncodeToString(b)[:n]
}

// junk returns a bulk of n distinct documents of a size that are not records.
func junk(n, size int) string {
	var bulk strings.Builder
	for range n {
		fmt.Fprintf(&bulk, "{\"index\":{\"_index\":\"logs\"}}\n{\"message\":\"%s\"}\n", noise(size))
	}
	return bulk.String()
}

// hold keeps a fault for 90 s, plus the time in which sluice up detects it at any pace.
func (a *alarms) hold(ctx context.Context) {
	a.sleep(ctx, 90*time.Second)
	time.Sleep(8 * time.Second)
}

func (a *alarms) cutTokens(ctx context.Context) error {
	file := filepath.Join(a.d.Dir, "tokens.yaml")
	whole, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, whole[:len(whole)-20], 0o600); err != nil {
		return err
	}
	a.sleep(ctx, 390*time.Second)
	return os.WriteFile(file, whole, 0o600)
}

// holdLane is an ingester that holds the lane's lease and does not read the lane.
func (a *alarms) holdLane(ctx context.Context) error {
	js, err := a.d.JetStream()
	if err != nil {
		return err
	}
	over, err := jetstreams.OverNATS(js.Conn())
	if err != nil {
		return err
	}
	ingester := a.d.Process(deployment.Ingester)
	held, done := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := ingester.Stop(); err != nil {
		return err
	}
	hung := lease.New(lease.Config{Instance: "hung", TTL: stream.LeaseTTL, Lanes: func() []int { return []int{0} },
		Bucket: func() (jetstreams.KeyValue, error) { return jetstreams.NewBucket(over, stream.LeaseBucket), nil },
	}, slog.New(slog.NewTextHandler(io.Discard, nil)), prometheus.NewRegistry())
	go func() {
		done <- hung.Run(ctx, func(ctx context.Context, _ int) error { close(held); <-ctx.Done(); return nil })
	}()
	select {
	case <-held:
	case err := <-done:
		return err
	}
	if err := a.d.Start(ctx); err != nil {
		return err
	}
	a.sleep(ctx, 100*time.Second)
	cancel()
	return <-done
}

// fillDead fills the disk budget of dead letters: each source takes half of the free rest. Then they are dropped.
func (a *alarms) fillDead(ctx context.Context) error {
	for _, source := range a.d.Sources[:6] {
		for range 100 {
			if status, err := a.post(ctx, a.d.Elastic+"/_bulk", a.d.Tokens[source], junk(10, 10_000)); err != nil || status != http.StatusOK {
				break
			}
		}
	}
	a.sleep(ctx, 2*time.Minute)
	_, err := a.d.Sluice(ctx, "dead", "drop", "--all", "--yes", "--nats", a.d.NATSURL)
	return err
}

// flood posts records of a size by n clients, each three a second, without retries.
func (a *alarms) flood(ctx context.Context, d time.Duration, n, size int) error {
	ctx, cancel := context.WithTimeout(ctx, a.paced(d))
	defer cancel()
	var clients errgroup.Group
	for range n {
		clients.Go(func() error {
			for ctx.Err() == nil {
				_, _ = a.post(ctx, a.d.URL+"/flow/flowRecord/batch", a.d.Tokens[a.d.Sources[1]], a.record("JOB", "CREATED", `{"type":"`+noise(size)+`"}`))
				deployment.Sleep(ctx, 300*time.Millisecond)
			}
			return nil
		})
	}
	return clients.Wait()
}

// loseLane deletes and recreates the stream of the lane. The operator's command resumes the lane.
func (a *alarms) loseLane(ctx context.Context) error {
	js, err := a.d.JetStream()
	if err != nil {
		return err
	}
	lane, err := js.Stream(ctx, "FLOW_0")
	if err != nil {
		return err
	}
	cfg := lane.CachedInfo().Config
	if err := js.DeleteStream(ctx, cfg.Name); err != nil {
		return err
	}
	if _, err := js.CreateStream(ctx, cfg); err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return err
	}
	a.sleep(ctx, 2*time.Minute)
	_, err = a.d.Sluice(ctx, "lanes", "reset", "--lane", "0", "--last", "0", "--yes", "--nats", a.d.NATSURL)
	return err
}

// halt renames a table: the lane halts. Posts fill half of its budget in 17 minutes, and then
// the rest quickly.
func (a *alarms) halt(ctx context.Context) error {
	if err := a.d.Exec(ctx, "RENAME TABLE flow.records TO flow.records_away"); err != nil {
		return err
	}
	begun, during, posted := time.Now(), a.paced(17*time.Minute), 0
	for ctx.Err() == nil && time.Since(begun) < during+a.paced(3*time.Minute) {
		if past := time.Since(begun); past < during && float64(posted) > 0.6*laneBudget*float64(past)/float64(during) {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		const size = 50_000
		if status, err := a.post(ctx, a.d.URL+"/flow/flowRecord/batch", a.d.Tokens[a.d.Sources[1]], a.record("JOB", "CREATED", `{"type":"`+noise(size)+`"}`)); err != nil || status != http.StatusOK {
			time.Sleep(200 * time.Millisecond)
		}
		posted += size
	}
	return a.d.Exec(ctx, "RENAME TABLE flow.records_away TO flow.records")
}
