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

type Upgrade struct {
	For      time.Duration `default:"60s" help:"Duration of the load and of the rolling upgrades."`
	Rate     float64       `default:"1000" help:"Records per second."`
	Previous string        `type:"path" help:"Folder of the programs of the previous version; this version when empty."`
	Seed     uint64        `default:"1" help:"Seed of the records."`

	Bin     string    `kong:"-"` // folder of the programs, with clocks; built when empty
	Journal io.Writer `kong:"-"`
}

func (u *Upgrade) Run(ctx context.Context) error {
	u.Journal = os.Stdout
	return report(upgrade(ctx, *u))
}

// retry bounds the retries of a request, from its first attempt. An upgrade fails if a
// request is rejected for longer.
const retry = time.Second

var errRefused = errors.New("a client was rejected for longer than a second")

// upgrade starts the previous version. It replaces every api and ingester, one of each kind
// at a time, by this version, by this version again, and by the previous one, until the time
// is up. Clients use a link to the ready apis, like a Kubernetes Service.
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
	versions := []string{u.Bin, u.Bin, cmp.Or(u.Previous, u.Bin)}
	cfg := Config{For: u.For, Seed: u.Seed, NATS: 1, Rate: u.Rate, StreamMaxBytes: 1 << 30, RepeatWindow: 5 * time.Minute, Bin: versions[2], Journal: u.Journal}
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
		for n := 0; n%3 == 0 || ctx.Err() == nil; n++ { // it ends with this version
			if err := s.roll(ctx, versions[n%3], n%3 == 2); err != nil {
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

// roll replaces all apis and ingesters by the programs in bin. An upgrade replaces the
// readers of a format first, a downgrade its writers; the same version, both together.
func (s *site) roll(ctx context.Context, bin string, back bool) error {
	kinds := []string{deployment.Ingester, deployment.API}
	if back {
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

// changeFields puts dataset fields until the time is up, and waits until each has its last
// value.
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

// field sends one request for a field, without retries.
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
