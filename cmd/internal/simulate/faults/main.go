// Command faults applies each deliberate fault to a copy of the tree and simulates until a
// history fails, or runs the tests that find it: make simulate-faults. A fault is a patch
// NN-name.patch beside this file; README.md lists how each is found.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// folder is the folder of the patches, from the root of the tree.
const folder = "cmd/internal/simulate/faults"

func main() {
	seeds := flag.Int("seeds", 5000, "maximum number of seeds for each fault")
	first := flag.Int("first", 1_000_000, "begin at this seed: a range that was never used before")
	only := flag.String("only", "", "only faults whose patch contains this")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *seeds, *first, *only); err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

// run requires that every fault is found, and that the unchanged tree has none.
func run(ctx context.Context, seeds, first int, only string) error {
	patches, err := filepath.Glob(filepath.Join(folder, "*"+only+"*.patch"))
	if err != nil || len(patches) == 0 {
		return errors.Join(err, fmt.Errorf("no patch in %s: run it from the root of the tree", folder))
	}
	tree, err := os.MkdirTemp("", "sluice-faults-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tree)
	list, err := os.ReadFile(filepath.Join(folder, "README.md"))
	if err != nil {
		return err
	}
	if err := copyTree(ctx, tree); err != nil {
		return fmt.Errorf("copy the tree: %w", err)
	}
	missed := 0
	fmt.Println("| fault | seeds | found at seed | by | took |\n|---|---|---|---|---|")
	for _, patch := range patches {
		name := strings.TrimSuffix(filepath.Base(patch), ".patch")
		text, err := os.ReadFile(patch)
		if err != nil {
			return err
		}
		if err := git(ctx, tree, text, "apply"); err != nil {
			return fmt.Errorf("apply %s: %w", name, err)
		}
		var found found
		if tests := regexp.MustCompile(`(?m)^\| ` + strings.TrimLeft(name[:2], "0") + ` \|[^|]*\|[^|]*\| (\w+) (Test[\w, ]+) \|`).FindSubmatch(list); tests != nil {
			found, err = try(ctx, tree, string(tests[1]), strings.ReplaceAll(string(tests[2]), ", ", "|"))
		} else {
			found, err = look(ctx, tree, seeds, first)
		}
		if err == nil {
			err = git(ctx, tree, text, "apply", "-R")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if found.by == "" {
			missed++
			found.seed = "**not found**"
		}
		fmt.Printf("| %s | %s | %s | %s | %v |\n", name, found.ran, found.seed, found.by, found.took.Round(time.Second))
	}
	if missed > 0 {
		return fmt.Errorf("%d of %d faults were not found in %d seeds", missed, len(patches), seeds)
	}
	return nil
}

// copyTree copies the files of the repository, and new ones.
func copyTree(ctx context.Context, to string) error {
	list, err := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return err
	}
	for path := range strings.SplitSeq(strings.Trim(string(list), "\x00"), "\x00") {
		if err := copyFile(path, filepath.Join(to, path)); err != nil && !errors.Is(err, os.ErrNotExist) { // removed, but not committed
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() // only read
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func git(ctx context.Context, dir string, input []byte, args ...string) error {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(input)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, said)
	}
	return nil
}

// found has the seed and the failure that revealed a fault.
type found struct {
	ran, seed, by string
	took          time.Duration
}

var (
	failure = regexp.MustCompile(`seed (\d+): \[?([^\n]*)`)
	ran     = regexp.MustCompile(`(\d+) histories`)
)

// try runs the tests of a package that must fail.
func try(ctx context.Context, tree, of, tests string) (f found, err error) {
	begun := time.Now()
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-run", "^("+tests+")$", "./pkg/"+of)
	cmd.Dir = tree
	said, err := cmd.CombinedOutput()
	f.took = time.Since(begun)
	if bytes.Contains(said, []byte("--- FAIL: ")) {
		f.by = of + " " + tests
		return f, nil
	}
	if err != nil {
		err = fmt.Errorf("%w:\n%s", err, said)
	}
	return f, err
}

func look(ctx context.Context, tree string, seeds, first int) (f found, err error) {
	begun := time.Now()
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-run", "^TestHistories$", "-v", "-timeout", "2h", "./cmd/internal/simulate")
	cmd.Dir = tree
	cmd.Env = append(os.Environ(), "SEEDS="+strconv.Itoa(seeds), "FIRST="+strconv.Itoa(first), "STOP=1")
	said, err := cmd.CombinedOutput()
	f.took = time.Since(begun)
	if m := ran.FindSubmatch(said); m != nil {
		f.ran = string(m[1])
	}
	if m := failure.FindSubmatch(said); m != nil {
		f.seed, f.by = string(m[1]), strings.Trim(string(m[2][:min(len(m[2]), 120)]), " ]")
		return f, nil
	}
	if err != nil && bytes.Contains(said, []byte("panic:")) {
		f.seed, f.by = "?", "a panic"
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("%w:\n%s", err, said)
	}
	return f, nil
}
