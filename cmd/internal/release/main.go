// Command release builds what a release consists of into a folder: the programs for
// every platform as archives, a bill of materials for each program, and the SHA-256 of
// all of them. The same commit and the same Go give the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

// platforms are those that the ClickHouse engine is shipped for, each with the name
// that npm has for it.
var platforms = []struct{ os, arch, engine string }{
	{"linux", "amd64", "linux-x64-gnu"},
	{"linux", "arm64", "linux-arm64-gnu"},
	{"darwin", "arm64", "darwin-arm64"},
	{"darwin", "amd64", "darwin-x64"},
}

var programs = []string{"api", "ingester", "sluice"}

type options struct {
	Out   string `default:"dist" help:"Folder for all of it; made anew."`
	Draft bool   `help:"Build what is no release: a commit without a tag, or with changes."`
	Only  string `placeholder:"OS/ARCH" help:"Build a draft for this platform alone."`
}

// release is one version being built.
type release struct {
	version, commit string
	at              time.Time // of the commit: the time of every file
	out             string
	files           []string // in out
}

func main() {
	var o options
	kong.Parse(&o, kong.Name("release"), kong.Description("Builds the archives, bills of materials and checksums of a release."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func (o *options) run(ctx context.Context) error {
	if o.Only != "" && !o.Draft {
		return errors.New("a release is of all platforms: --only goes with --draft")
	}
	r, err := of(ctx, o.Out, o.Draft)
	if err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(r.out), os.MkdirAll(r.out, 0o755)); err != nil {
		return err
	}
	for _, p := range platforms {
		if o.Only != "" && o.Only != p.os+"/"+p.arch {
			continue
		}
		if err := r.platform(ctx, p.os, p.arch, p.engine); err != nil {
			return fmt.Errorf("%s/%s: %w", p.os, p.arch, err)
		}
	}
	if len(r.files) == 0 {
		return fmt.Errorf("--only %s: that is none of the platforms", o.Only)
	}
	if err := r.sums(); err != nil {
		return err
	}
	fmt.Printf("%s of %s is in %s: %d files\n", r.version, r.commit, r.out, len(r.files)+1)
	return nil
}

// released is a tag of a release.
var released = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9a-z.]+)?$`)

// of looks which version the working folder is.
func of(ctx context.Context, out string, draft bool) (*release, error) {
	commit, err := git(ctx, "rev-parse", "HEAD")
	if err != nil {
		return nil, err
	}
	version, err := git(ctx, "describe", "--tags", "--always", "--dirty", "--match", "v*")
	if err != nil {
		return nil, err
	}
	if !draft && !released.MatchString(version) {
		return nil, fmt.Errorf("this is %s, not a release: tag the commit (docs/releases.md), or say --draft", version)
	}
	seconds, err := git(ctx, "log", "-1", "--format=%ct")
	if err != nil {
		return nil, err
	}
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("the time of the commit: %w", err)
	}
	return &release{version: version, commit: commit, at: time.Unix(at, 0).UTC(), out: out}, nil
}

// platform builds the programs for one platform, and what goes with them.
func (r *release) platform(ctx context.Context, goos, goarch, engine string) error {
	name := fmt.Sprintf("sluice-%s-%s-%s", r.version, goos, goarch)
	stage := filepath.Join(r.out, name)
	if err := os.MkdirAll(stage, 0o755); err != nil {
		return err
	}
	stamp := fmt.Sprintf("-s -w -X sluice/cmd/internal/run.version=%s -X sluice/cmd/internal/run.commit=%s", r.version, r.commit)
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", stamp, "-o", stage+"/",
		"./cmd/api", "./cmd/ingester", "./cmd/sluice")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch)
	if _, err := output(build); err != nil {
		return err
	}
	for _, program := range programs {
		bill, err := billOf(filepath.Join(stage, program), program, r)
		if err != nil {
			return err
		}
		if err := r.write(fmt.Sprintf("%s-%s.cdx.json", name, program), bill); err != nil {
			return err
		}
	}
	// What the programs come with. The engine is not ours to ship: its lock says
	// which one npm is to fetch, where the project knows its hash.
	contents := map[string]string{"README.md": "README.md", "CHANGELOG.md": "CHANGELOG.md", "SECURITY.md": "SECURITY.md"}
	for _, file := range []string{"package.json", "package-lock.json"} {
		if from := filepath.Join("deploy", "engine", engine, file); isFile(from) {
			contents["engine/"+file] = from
		}
	}
	for _, program := range programs {
		contents[program] = filepath.Join(stage, program)
	}
	archive, err := r.archive(name, contents)
	if err != nil {
		return err
	}
	return errors.Join(r.write(name+".tar.gz", archive), os.RemoveAll(stage))
}

func isFile(path string) bool {
	stat, err := os.Stat(path)
	return err == nil && stat.Mode().IsRegular()
}

// archive packs files, by their names within the folder of that name.
func (r *release) archive(folder string, contents map[string]string) ([]byte, error) {
	var names []string
	for name := range contents {
		names = append(names, name)
	}
	slices.Sort(names)
	var packed bytes.Buffer
	zip, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	all := tar.NewWriter(zip)
	for _, name := range names {
		content, err := os.ReadFile(contents[name])
		if err != nil {
			return nil, err
		}
		mode := int64(0o644)
		if slices.Contains(programs, name) {
			mode = 0o755
		}
		head := &tar.Header{Name: folder + "/" + name, Mode: mode, Size: int64(len(content)), ModTime: r.at, Format: tar.FormatPAX}
		if err := all.WriteHeader(head); err != nil {
			return nil, err
		}
		if _, err := all.Write(content); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(all.Close(), zip.Close()); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}

func (r *release) write(name string, content []byte) error {
	r.files = append(r.files, name)
	return os.WriteFile(filepath.Join(r.out, name), content, 0o644)
}

// sums writes the SHA-256 of every file, as sha256sum -c reads it.
func (r *release) sums() error {
	var lines strings.Builder
	slices.Sort(r.files)
	for _, name := range r.files {
		sum, err := hashOf(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%s  %s\n", sum, name)
	}
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(lines.String()), 0o644)
}

func hashOf(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
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
