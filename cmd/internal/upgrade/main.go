// Command upgrade rolls a running Sluice from the release before to this version,
// back, and forward again, under load. It exits 0 only if nothing was lost or duplicated
// and no client had to wait longer than a second for another attempt.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"sluice/cmd/internal/upgrade/rolling"
	"sluice/pkg/programtest"
)

type options struct {
	Previous string  `placeholder:"REVISION" help:"Tag or commit of the version before; the newest tag v* that is not this commit when empty."`
	Rate     float64 `default:"1000" help:"Records per second."`
	Times    int     `default:"1" help:"How often to go forward, back and forward again."`
}

func main() {
	var o options
	kong.Parse(&o, kong.Name("upgrade"), kong.Description("Rolls a running Sluice from the release before to this version and back, under load."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "upgrade:", err)
		os.Exit(1)
	}
}

func (o *options) run(ctx context.Context) (err error) {
	previous, err := o.previous(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sluice-upgrade-")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(dir)
		} else {
			err = fmt.Errorf("%w (data and logs are in %s)", err, dir)
		}
	}()
	before, now := filepath.Join(dir, "before"), filepath.Join(dir, "now")
	if err := buildOf(ctx, previous, filepath.Join(dir, "source"), before); err != nil {
		return err
	}
	if err := programtest.Build(ctx, now); err != nil {
		return err
	}
	cfg := rolling.Config{Bin: before, Dir: dir, Rate: o.Rate, Out: os.Stdout, Settled: true}
	for range o.Times {
		cfg.Waves = append(cfg.Waves,
			rolling.Wave{Name: "from " + previous + " to this version", Bin: now, Order: rolling.IngestersFirst},
			rolling.Wave{Name: "back to " + previous, Bin: before, Order: rolling.APIsFirst},
			rolling.Wave{Name: "to this version again", Bin: now, Order: rolling.IngestersFirst})
	}
	_, err = rolling.Run(ctx, cfg)
	return err
}

// previous is the version before, as git names it.
func (o *options) previous(ctx context.Context) (string, error) {
	if o.Previous != "" {
		if _, err := git(ctx, "rev-parse", "--verify", "--quiet", o.Previous+"^{commit}"); err != nil {
			return "", fmt.Errorf("--previous %s: there is no such tag or commit here", o.Previous)
		}
		return o.Previous, nil
	}
	tags, err := git(ctx, "tag", "--list", "v*", "--merged", "HEAD", "--no-contains", "HEAD", "--sort=-version:refname")
	if err != nil {
		return "", err
	}
	newest, _, _ := strings.Cut(tags, "\n")
	if newest == "" {
		return "", errors.New("there is no release before this version: no tag v* below HEAD; fetch the tags (git fetch --tags), or name a commit: make upgrade PREVIOUS=COMMIT")
	}
	return newest, nil
}

// buildOf builds the programs of another version from its source alone, into bin.
func buildOf(ctx context.Context, revision, source, bin string) error {
	if err := os.MkdirAll(source, 0o700); err != nil {
		return err
	}
	archive := source + ".tar"
	if _, err := git(ctx, "archive", "--format=tar", "--output", archive, revision); err != nil {
		return err
	}
	if _, err := output(exec.CommandContext(ctx, "tar", "-xf", archive, "-C", source)); err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", bin+"/", "./cmd/api", "./cmd/ingester", "./cmd/sluice")
	build.Dir = source
	if _, err := output(build); err != nil {
		return fmt.Errorf("build %s: %w", revision, err)
	}
	return os.RemoveAll(source)
}

func git(ctx context.Context, args ...string) (string, error) {
	return output(exec.CommandContext(ctx, "git", args...))
}

// output runs a command; what it says on standard error is in the error.
func output(cmd *exec.Cmd) (string, error) {
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(said.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
