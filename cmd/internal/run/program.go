// Package run wires the packages of Sluice into its programs. It holds the code that the
// three commands share. Sibling packages are wired only here and in the commands.
package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/term"
)

// EnvPrefix is the prefix of every option's environment variable.
const EnvPrefix = "SLUICE"

// drainTime bounds a graceful stop: past it the program gives up and exits 1.
const drainTime = 10 * time.Second

// Program parses the command line into cli, whose commands have methods
// Run(context.Context, *slog.Logger) error, runs the command until it ends or a signal
// stops it, and returns the exit status.
//
// The first SIGINT or SIGTERM cancels the context, which drains; the second
// one exits immediately.
func Program(name, description string, cli any) int {
	easeTimers()
	parser, err := kong.New(cli,
		kong.Name(name),
		kong.Description(description),
		kong.DefaultEnvars(EnvPrefix),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.UsageOnError(),
		kong.Resolvers(addresses),
		kong.Embed(&struct {
			Version kong.VersionFlag `env:"-" help:"Print version and commit, and exit."`
		}{}),
		kong.Vars{"version": versionLine(name)},
	)
	if err != nil {
		return fail(os.Stderr, name, err)
	}
	if err := unknownVariables(parser.Model, os.Environ()); err != nil {
		return fail(os.Stderr, name, err)
	}
	command, err := parser.Parse(os.Args[1:])
	if err != nil {
		return fail(os.Stderr, name, fmt.Errorf("%w (see %s --help)", err, name))
	}

	format := cli.(interface{ format() string }).format()
	text := format == "text" || format == "auto" && IsTerminal(os.Stderr)
	log := newLogger(os.Stderr, text)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go handleSignals(stop, log)

	command.BindTo(ctx, (*context.Context)(nil))
	err = command.Run(log)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = stoppedEarly(UntilStopped(ctx, err))
	}
	if err != nil && !text && slices.Contains(servers, name+" "+command.Command()) {
		log.Error("ended: " + err.Error()) // keeps the last line JSON
		return 1
	}
	if err != nil {
		return fail(os.Stderr, name, err)
	}
	return 0
}

// servers are the programs and commands whose standard error is a log. The engine is not
// among them: its parent logs its last error.
var servers = []string{"api ", "ingester ", "sluice up", "sluice nats", "sluice console"}

// stoppedEarly is the error of a command stopped before it finished.
func stoppedEarly(rest error) error {
	if rest == nil {
		return errors.New("stopped before completion")
	}
	return fmt.Errorf("stopped before completion: %w", rest)
}

// UntilStopped removes the cancellation errors of a stop, for commands that run until
// they are stopped.
func UntilStopped(ctx context.Context, err error) error {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		var left []error
		for _, e := range several.Unwrap() {
			left = append(left, UntilStopped(ctx, e))
		}
		return errors.Join(left...)
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func fail(w io.Writer, name string, err error) int {
	fmt.Fprintf(w, "%s: %v\n", name, err)
	return 1
}

func handleSignals(stop func(), log *slog.Logger) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	log.Info("stopping: draining work in flight", "signal", (<-signals).String())
	stop()
	select {
	case <-signals:
		log.Error("killed by a second signal")
	case <-time.After(drainTime):
		log.Error("not drained in time: exiting", "bound", drainTime)
	}
	os.Exit(1)
}

func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// unknownVariables rejects a variable with our prefix that no option has: a misspelt
// setting must not be ignored.
func unknownVariables(model *kong.Application, environ []string) error {
	var known []string
	err := kong.Visit(model, func(node kong.Visitable, next kong.Next) error {
		switch node := node.(type) {
		case *kong.Flag:
			known = append(known, node.Envs...)
		case *kong.Value:
			if node.Tag != nil {
				known = append(known, node.Tag.Envs...)
			}
		}
		return next(nil)
	})
	if err != nil {
		return err
	}
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, EnvPrefix+"_") && !slices.Contains(known, name) {
			return fmt.Errorf("unknown environment variable %s: unset it; --help lists the names", name)
		}
	}
	return nil
}

// version and commit are linked in by make.
var version, commit string

// unknown is the version of a program built without its repository.
const unknown = "unknown"

// Version is the version of Sluice, such as v0.1.0, and its commit: those linked in, else
// those of Go's build information.
func Version() (v, c string) {
	v, c = version, commit
	if built, ok := debug.ReadBuildInfo(); ok {
		if v == "" && built.Main.Version != "(devel)" {
			v = built.Main.Version
		}
		for _, s := range built.Settings {
			if c == "" && s.Key == "vcs.revision" {
				c = s.Value
			}
		}
	}
	return cmp.Or(v, unknown), cmp.Or(c, unknown)
}

// versionLine is the output of --version.
func versionLine(program string) string {
	v, c := Version()
	return fmt.Sprintf("%s %s (commit %s, %s %s/%s)", program, v, c, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
