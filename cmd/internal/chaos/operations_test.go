package main

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/fatal"

	"github.com/google/go-cmp/cmp"
)

func TestOperations(t *testing.T) {
	t.Run("all requested operations are planned, in an order by the seed", func(t *testing.T) {
		cfg := Config{For: 2 * time.Minute, Every: time.Hour, Faults: operationNames()}
		orders := map[string]bool{}
		for cfg.Seed = range uint64(3) {
			lines := strings.Join(planned(t, cfg, 1), "\n") + "\n"
			orders[lines] = true
			for _, name := range operationNames() {
				if n := strings.Count(lines, "s "+name); n != 1 {
					t.Errorf("%s is planned %d times:\n%s", name, n, lines)
				}
			}
			if lines != strings.Join(planned(t, cfg, 1), "\n")+"\n" {
				t.Error("two schedules of the same seed differ")
			}
		}
		if len(orders) != 3 {
			t.Errorf("three seeds have %d schedules", len(orders))
		}
	})
	t.Run("an operation takes oneOperation first, and its error ends the run", func(t *testing.T) {
		cfg := Config{NATS: 3, For: time.Hour}
		d, err := deployment.New(cfg.deployment(t.TempDir(), cfg.posts().sources()))
		fatal.If(t, err)
		defer d.Close()
		for _, f := range asked(cfg, d) {
			if first := slices.Min(slices.Concat(f.Alone, serversAlone(d, deployment.NATS, deployment.Engine))); first != oneOperation || !f.Must {
				t.Errorf("%s takes %s first, its error ends the run: %v", f.Name(), first, f.Must)
			}
		}
	})
	t.Run("an unknown name is rejected", func(t *testing.T) {
		if _, err := (Config{Faults: []string{"backup", "earthquake"}}).operations(); err == nil || !strings.Contains(err.Error(), "earthquake") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("a run fails without a requested operation", func(t *testing.T) {
		cfg := Config{Faults: []string{"backup", "forget"}}
		if err := cfg.injected(counts{"backup": 1, "forget": 1}); err != nil {
			t.Error(err)
		}
		err := cfg.injected(counts{"backup": 1, "kill": 3})
		if !errors.Is(err, errNotInjected) || !strings.Contains(err.Error(), "forget") || strings.Contains(err.Error(), "backup") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("none disables all", func(t *testing.T) {
		if all, err := (Config{Faults: []string{none}}).operations(); err != nil || len(all) > 0 {
			t.Errorf("%d operations, %v", len(all), err)
		}
	})
}

// TestAFailedStepEndsTheRun: without a requested operation a run has no verdict.
func TestAFailedStepEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{cfg: Config{For: 20 * time.Minute}, journal: newJournal(io.Discard)}
		down := errors.New("NATS is down")
		stuck := Fault{Kind: "set-back-nats", Must: true, Inject: func(ctx context.Context, s *site) (func(), error) {
			return nil, s.insist(ctx, "read the ends of the lanes", func(context.Context) error { return down })
		}}
		weak := Fault{Kind: "kill", Inject: func(context.Context, *site) (func(), error) { return nil, errDown }}
		never := Fault{Inject: func(context.Context, *site) (func(), error) { t.Error("the run continues"); return nil, nil }}
		began := time.Now()
		err := s.carryOutAll(t.Context(), []due{{0, weak}, {0, stuck}, {time.Hour, never}})
		if took := time.Since(began); !errors.Is(err, down) || !strings.Contains(err.Error(), "set-back-nats: read the ends of the lanes: ") || took > s.patience()+time.Second {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// TestALedgerIsReadAsItWasWritten covers concurrent writes, and a ledger whose client died.
func TestALedgerIsReadAsItWasWritten(t *testing.T) {
	l, err := newLedger(t.TempDir(), people)
	fatal.If(t, err)
	defer l.close()
	now := time.UnixMilli(1763700000000)
	for n, acked := range []bool{true, false, true} {
		fatal.If(t, l.noteRequest("key", []byte(shortLife(n, now)), acked))
	}
	fatal.If(t, l.note([]byte(`{"id":"alone"}`), true))
	file, err := os.OpenFile(l.path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteString(`{"source":"peo`)
	}
	fatal.If(t, errors.Join(err, file.Close()))
	o, err := l.oracle()
	fatal.If(t, err)
	if o.Acked() != 9 || l.written() != 13 || l.abandoned != 4 {
		t.Errorf("%d of %d records acknowledged, %d abandoned, want 9 of 13, 4", o.Acked(), l.written(), l.abandoned)
	}
	instances, err := instancesOf(l)
	if diff := cmp.Diff([]string{"9100000000000000", "9100000000000020"}, instances); err != nil || diff != "" {
		t.Errorf("instances, %v (-want +got):\n%s", err, diff)
	}
	l.forget(instances[0])
	if o, err = l.oracle(); err != nil || o.Acked() != 5 {
		t.Errorf("%d records are kept, %v, want 5", o.Acked(), err)
	}
}
