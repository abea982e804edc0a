package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"sluice/pkg/programtest"
)

// render writes the chart's manifests of each size.
func render(ctx context.Context, dir string, env map[string]string) error {
	env["CHART"] = filepath.Join(dir, "chart")
	return said(exec.CommandContext(ctx, "go", "test", "-C", "cmd/internal/foreign/kubernetes", "-vet=off", "-count=1", "-run", "^TestTheChartIsRendered$", ".", "-out", env["CHART"]))
}

// said runs a command. Its error includes the output.
func said(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// packaged checks the Debian package in a root folder, without installing it on the
// machine: it is installed in an invented version, run, upgraded, run on its data,
// removed, and purged.
type packaged struct{ sluice, nfpm, python string }

// invented is older than every packaged version.
const invented = "v0.0.1"

func (p packaged) check(ctx context.Context, dir string, _ map[string]string) (r result) {
	dir = filepath.Join(dir, "packages")
	t := installed{dir: dir, root: filepath.Join(dir, "root"), at: map[string]string{}}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"packages are made", func() error {
			return errors.Join(p.stage(ctx, dir, invented, "deb"), p.stage(ctx, dir, programtest.Version, "deb rpm"), t.empty(),
				said(exec.CommandContext(ctx, "deploy/package/stage.sh", filepath.Join(dir, invented), "darwin", "arm64", "darwin-arm64", invented, dir))) // of another platform
		}},
		{"an invented version is installed", func() error { return t.install(ctx, invented) }},
		{"the unit is valid and hardened", func() error { return t.verify(ctx) }},
		{"the service stores a record", func() error { return t.serve(ctx, true) }},
		{"it is upgraded, and the settings stay", func() error { return t.install(ctx, programtest.Version) }},
		{"the service has the record", func() error { return t.serve(ctx, false) }},
		{"it is removed: settings and records stay", func() error { return t.remove(ctx, "-r", true) }},
		{"it is purged: records stay", func() error { return t.remove(ctx, "-P", false) }},
		{"the .rpm has the files of the .deb", func() error { return p.compare(ctx, dir) }},
	} {
		if err := step.do(); err != nil {
			r.failed = append(r.failed, fmt.Sprintf("%s: %v", step.name, err))
			return r // later steps depend on it
		}
		r.ok++
	}
	return r
}

// stage makes packages of the built programs under a version.
func (p packaged) stage(ctx context.Context, dir, version, kinds string) error {
	folder := filepath.Join(dir, version)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, program := range []string{"api", "ingester", "sluice"} {
		if err := os.Link(filepath.Join(filepath.Dir(p.sluice), program), filepath.Join(folder, program)); err != nil {
			return said(exec.CommandContext(ctx, "cp", "-t", folder, filepath.Join(filepath.Dir(p.sluice), program))) // on another disk
		}
	}
	nfpm, err := filepath.Abs(p.nfpm)
	cmd := exec.CommandContext(ctx, "deploy/package/stage.sh", folder, "linux", runtime.GOARCH, engineOf(), version, dir)
	cmd.Env = append(os.Environ(), "NFPM="+nfpm, "KINDS="+kinds)
	return errors.Join(err, said(cmd))
}

func engineOf() string {
	return "linux-" + strings.Replace(runtime.GOARCH, "amd64", "x64", 1) + "-gnu"
}

// made returns the file of a version's package of a kind.
func made(dir, version, kind string) (string, error) {
	found, err := filepath.Glob(filepath.Join(dir, "sluice?"+strings.TrimPrefix(version, "v")+"*."+kind))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("packages of %s are %q, want one .%s: %w", version, found, kind, err)
	}
	return found[0], nil
}

// installed is a root folder with an installed package.
type installed struct {
	dir, root string
	at        map[string]string // addresses, by variable
}

func (t installed) empty() error {
	err := os.MkdirAll(filepath.Join(t.root, "var/lib/dpkg/info"), 0o755)
	return errors.Join(err, os.Mkdir(filepath.Join(t.root, "var/lib/dpkg/updates"), 0o755), os.WriteFile(filepath.Join(t.root, "var/lib/dpkg/status"), nil, 0o644))
}

func (t installed) dpkg(ctx context.Context, args ...string) error {
	return said(exec.CommandContext(ctx, "dpkg", append([]string{"--root=" + t.root, "--log=/dev/null", "--force-script-chrootless,not-root,depends,confold"}, args...)...))
}

const settings = "etc/sluice/sluice.env"

// install installs or upgrades to a version. An upgrade must keep the settings.
func (t installed) install(ctx context.Context, version string) error {
	deb, err := made(t.dir, version, "deb")
	if err != nil {
		return err
	}
	before, _ := os.ReadFile(filepath.Join(t.root, settings))
	if err := t.dpkg(ctx, "-i", deb); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "dpkg-query", "--admindir="+filepath.Join(t.root, "var/lib/dpkg"), "-W", "-f", "${db:Status-Status} ${Version}", "sluice").Output()
	if want := "installed " + strings.TrimPrefix(version, "v"); err != nil || string(out) != want {
		return fmt.Errorf("it is %q, want %q: %w", out, want, err)
	}
	users, err := os.ReadFile(filepath.Join(t.root, "etc/passwd"))
	if err != nil || !strings.Contains(string(users), "\nsluice:") && !strings.HasPrefix(string(users), "sluice:") {
		return fmt.Errorf("the user sluice is missing: %q, %w", users, err)
	}
	now, err := os.ReadFile(filepath.Join(t.root, settings))
	if before == nil {
		now = t.configure(now)
		return errors.Join(err, os.WriteFile(filepath.Join(t.root, settings), now, 0o644), t.engine())
	}
	if string(now) != string(before) {
		return fmt.Errorf("the settings changed from %q to %q: %w", before, now, err)
	}
	return err
}

// configure enables every commented setting, with free addresses.
func (t installed) configure(text []byte) []byte {
	return regexp.MustCompile(`(?m)^#(SLUICE_[A-Z_]+)=(.*)$`).ReplaceAllFunc(text, func(line []byte) []byte {
		name, value, _ := strings.Cut(string(line[1:]), "=")
		if strings.HasPrefix(value, "127.0.0.1:") {
			value = programtest.Address()
			t.at[name] = value
		}
		return []byte(name + "=" + value)
	})
}

// engine links the engine to the folder where npm installs it.
func (t installed) engine() error {
	library, err := filepath.EvalSymlinks(".cache/programs/plain/libchdb.so")
	if err != nil {
		return err
	}
	library, err = filepath.Abs(library)
	folder := filepath.Join(t.root, "usr/lib/sluice/engine/node_modules/@chdb/lib-"+engineOf())
	return errors.Join(err, os.MkdirAll(folder, 0o755), os.Symlink(library, filepath.Join(folder, "libchdb.so")))
}

// unit returns the text of the unit, with the paths of this root.
func (t installed) unit() (string, error) {
	text, err := os.ReadFile(filepath.Join(t.root, "usr/lib/systemd/system/sluice.service"))
	return strings.NewReplacer("/usr/lib/sluice/", t.root+"/usr/lib/sluice/", "/var/lib/sluice", t.root+"/var/lib/sluice").Replace(string(text)), err
}

// maxExposed is the limit of systemd-analyze security in tenths; 100 is a service
// without any confinement.
const maxExposed = "20"

func (t installed) verify(ctx context.Context) error {
	text, err := t.unit()
	file := filepath.Join(t.dir, "sluice.service")
	if err := errors.Join(err, os.WriteFile(file, []byte(text), 0o644)); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "systemd-analyze", "verify", "--man=no", "--recursive-errors=no", file)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 { // warnings too
		return fmt.Errorf("systemd-analyze verify: %s: %w", out, err)
	}
	return said(exec.CommandContext(ctx, "systemd-analyze", "security", "--offline=yes", "--threshold="+maxExposed, "--no-pager", file))
}

// serve runs the unit's command line with its settings, posts a record if asked, and
// counts the records.
func (t installed) serve(ctx context.Context, post bool) (err error) {
	text, err := t.unit()
	if err != nil {
		return err
	}
	variables, err := os.ReadFile(filepath.Join(t.root, settings))
	if err != nil {
		return err
	}
	line := strings.Fields(regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindStringSubmatch(text)[1])
	p := programtest.New(t.dir, "service", line[0], line[1:]...)
	p.Ops, p.Cmd.Env = t.at["SLUICE_OPS"], append(programtest.Environ(), regexp.MustCompile(`(?m)^SLUICE_.*$`).FindAllString(string(variables), -1)...)
	if err := p.Start(); err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, p.Stop()); err != nil {
			err = fmt.Errorf("%w: %s", err, p.Tail(20))
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := p.Ready(ctx); err != nil {
		return err
	}
	if post {
		token, err := os.ReadFile(filepath.Join(t.root, "var/lib/sluice/token"))
		record := fmt.Sprintf(`{"partitionId":1,"position":1,"timestamp":%d,"key":1,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","value":{}}`, time.Now().UnixMilli())
		_, asked := ask(ctx, "http://"+t.at["SLUICE_HTTP"]+"/flow/flowRecord/batch?wait=stored", string(token), record)
		if err := errors.Join(err, asked); err != nil {
			return err
		}
	}
	if stored, err := ask(ctx, "http://"+t.at["SLUICE_CLICKHOUSE_HTTP"], "", "SELECT count() FROM flow.records"); err != nil || stored != "1" {
		return fmt.Errorf("%q records stored, want 1: %w", stored, err)
	}
	return nil
}

// ask posts a body; an empty token is omitted.
func ask(ctx context.Context, url, token, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	if token != "" {
		req.Header.Set("Authorization", strings.TrimSpace(token))
		req.Header.Set("Content-Type", "application/json")
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	return strings.TrimSpace(string(text)), err
}

// remove removes the package, or purges it with its settings.
func (t installed) remove(ctx context.Context, how string, settingsStay bool) error {
	if err := t.dpkg(ctx, how, "sluice"); err != nil {
		return err
	}
	for name, stays := range map[string]bool{"usr/lib/sluice": false, "usr/bin/sluice": false, "usr/lib/systemd/system/sluice.service": false,
		settings: settingsStay, "var/lib/sluice/token": true} {
		if _, err := os.Lstat(filepath.Join(t.root, name)); (err == nil) != stays {
			return fmt.Errorf("%s exists: %t, want %t", name, err == nil, stays)
		}
	}
	return nil
}

// compare compares the files of the .rpm with those of the .deb.
func (p packaged) compare(ctx context.Context, dir string) error {
	deb, err := made(dir, programtest.Version, "deb")
	rpm, err2 := made(dir, programtest.Version, "rpm")
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	return said(exec.CommandContext(ctx, p.python, "-c", `
import subprocess, sys, tarfile, io, rpmfile
tar = tarfile.open(fileobj=io.BytesIO(subprocess.run(["dpkg-deb", "--fsys-tarfile", sys.argv[1]], check=True, capture_output=True).stdout))
deb = sorted(m.name.lstrip("./") for m in tar.getmembers() if not m.isdir())
rpm = sorted(m.name.lstrip("./") for m in rpmfile.open(sys.argv[2]).getmembers() if not m.isdir)
assert len(deb) > 10 and [f for f in deb if not f.endswith("changelog.gz")] == rpm, (deb, rpm)`, deb, rpm))
}
