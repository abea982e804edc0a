package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load"
	"sluice/pkg/programtest"
)

// Upgrade says which programs replace which, and how. It is the command line.
type Upgrade struct {
	For      time.Duration `default:"60s" help:"How long to post, and to roll there and back."`
	Rate     float64       `default:"1000" help:"Records per second."`
	Previous string        `type:"path" help:"Folder of the programs of the version before; those of this version replace each other when empty."`
	Seed     uint64        `default:"1" help:"Decides the records."`

	Bin     string    `kong:"-"` // folder of the programs, with clocks; built when empty
	Journal io.Writer `kong:"-"`
}

// Run is the scenario upgrade.
func (u *Upgrade) Run(ctx context.Context) error {
	u.Journal = os.Stdout
	return report(upgrade(ctx, *u))
}

// retry is how long after a request was sent first its client begins another attempt. One
// that is still refused then fails the roll.
const retry = time.Second

// errRefused is what upgrade returns when a client had to wait longer than that.
var errRefused = errors.New("a client was refused for longer than a second")

// upgrade replaces every api and every ingester, one of each kind at a time, by this
// version, by the one before, and by this one again, until the time is up, while records
// and changes of fields come in over a link that leads to apis that are ready, as a
// Service of Kubernetes does.
func upgrade(ctx context.Context, u Upgrade) (Result, error) {
	if u.Bin == "" {
		dir, err := os.MkdirTemp("", "sluice-upgrade-")
		if err != nil {
			return Result{}, err
		}
		defer os.RemoveAll(dir)
		if err := programtest.Build(ctx, dir); err != nil {
			return Result{}, err
		}
		u.Bin = dir
	}
	versions := []string{u.Bin, cmp.Or(u.Previous, u.Bin)}
	cfg := Config{For: u.For, Seed: u.Seed, NATS: 1, Rate: u.Rate, StreamMaxBytes: 1 << 30, RepeatWindow: 5 * time.Minute, Bin: versions[1], Journal: u.Journal}
	all := posting{
		clients: []client{{source: "engine", share: 1, cfg: load.Config{Batch: 20, Connections: 4}}},
		fields:  true, giveUp: retry,
	}
	r, err := try(ctx, cfg, all, func(ctx context.Context, s *site) error {
		ops := map[string]string{}
		for _, p := range s.Of(deployment.API) {
			ops[p.HTTP] = p.Ops
		}
		s.Links[deployment.Clients].Ready = func(api string) bool { return programtest.AnswersOK(ctx, "http://"+ops[api]+"/readyz") == nil }
		for n := 0; n%2 == 0 || ctx.Err() == nil; n++ { // it ends with this version
			if err := s.roll(ctx, versions[n%2], n); err != nil {
				return err
			}
		}
		s.Bin = u.Bin
		return nil
	})
	if err == nil && r.Abandoned > 0 {
		err = fmt.Errorf("%w: %d records", errRefused, r.Abandoned)
	}
	return r, err
}

// roll replaces all apis and all ingesters by the programs in bin. The reader of a format
// goes before its writer when a later version comes, and after it when it goes; of one
// version they go at the same time.
func (s *site) roll(ctx context.Context, bin string, n int) error {
	kinds := []string{deployment.Ingester, deployment.API}
	if n%2 == 1 {
		slices.Reverse(kinds)
	}
	var rolling errgroup.Group
	if s.Process(kinds[0]).Cmd.Path != filepath.Join(bin, kinds[0]) {
		rolling.SetLimit(1)
	}
	for _, kind := range kinds {
		rolling.Go(func() error {
			for _, p := range s.Of(kind) {
				if err := s.carryOut(ctx, replace(p, bin)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return rolling.Wait()
}

// changeFields puts one dataset field after the other until the time is up, and then waits
// until each can be read as it was put last.
func (s *site) changeFields(ctx context.Context, giveUp time.Duration) error {
	last := map[string]string{}
	for n, began := 0, time.Now(); time.Since(began) < s.cfg.For; n++ {
		field, body := fmt.Sprintf("field-%d", n%20), fmt.Sprintf(`"name":"put %d"`, n)
		for first, try := time.Now(), 1; ; try++ {
			_, err := s.field(ctx, http.MethodPut, field, "{"+body+"}")
			if err == nil {
				break
			}
			s.journal.note("put %s: %v", field, err)
			if !deployment.Sleep(ctx, time.Duration(try)*25*time.Millisecond) || time.Since(first) > giveUp {
				return fmt.Errorf("%w: put %s, %d attempts: %w", errRefused, field, try, err)
			}
		}
		last[field] = body
		if !deployment.Sleep(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
	s.journal.note("%d fields were changed", len(last))
	for field, want := range last {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			got, err := s.field(ctx, http.MethodGet, field, "")
			if err == nil && strings.Contains(got, want) {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("field %s is %s (%v), want %s in it", field, got, err, want)
			}
		}
	}
	return nil
}

// field makes one attempt at a request about a field.
func (s *site) field(ctx context.Context, method, field, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.URL+"/ds/dataset/field/custom/rolled/"+field, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", s.Token)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, answer)
	}
	return string(answer), err
}
