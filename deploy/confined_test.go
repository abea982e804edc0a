package deploy_test

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/pkg/programtest"
)

// confined is a program as docker compose would run it: as the user of the
// service, in a folder where it cannot write. Only tests that run as root
// can take another user; others are users without rights already.
func confined(t *testing.T, s service, program string, arguments ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(program, arguments...)
	cmd.Dir = reachable(t)
	if err := os.Chmod(cmd.Dir, 0o555); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 {
		return cmd
	}
	user, group, _ := strings.Cut(s.User, ":")
	uid, err := strconv.ParseUint(user, 10, 32)
	if err != nil {
		t.Fatalf("the service runs as user %q, want a number", s.User)
	}
	gid, err := strconv.ParseUint(group, 10, 32)
	if err != nil {
		t.Fatalf("the service runs as group %q, want a number", group)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	return cmd
}

// reachable is a folder that every user can come to, which t.TempDir is not.
func reachable(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// mount is a folder of files as a container sees it where it is mounted: with
// its modes, and without the folders above it.
func mount(t *testing.T, source string) string {
	t.Helper()
	target := reachable(t)
	files, err := os.ReadDir(source)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		copyWithMode(t, filepath.Join(source, file.Name()), filepath.Join(target, file.Name()))
	}
	info, err := os.Stat(source)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(target, info.Mode()); err != nil {
		t.Fatal(err)
	}
	return target
}

func copyWithMode(t *testing.T, source, target string) {
	t.Helper()
	info, err := os.Stat(source)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(target, read(t, source), info.Mode()); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(target, info.Mode()); err != nil { // whatever the umask
		t.Fatal(err)
	}
}

// TestNATSOfComposeStartsWhereItCannotWrite runs the official server by the
// command line of the service: it writes to the folder of its store alone.
func TestNATSOfComposeStartsWhereItCannotWrite(t *testing.T) {
	s := compose(t).Services["nats"]
	if !s.ReadOnly {
		t.Error("the server can write its own image")
	}
	bin := reachable(t)
	if err := programtest.BuildNATS(t.Context(), bin); err != nil {
		t.Fatal(err)
	}
	store, config := reachable(t), reachable(t)
	if err := os.Chown(store, 65532, 65532); os.Getuid() == 0 && err != nil {
		t.Fatal(err)
	}
	client, monitor := programtest.Address(), programtest.Address()
	content := strings.NewReplacer("0.0.0.0:4222", client, "0.0.0.0:8222", monitor).Replace(string(read(t, "nats.conf")))
	if err := os.WriteFile(filepath.Join(config, "nats.conf"), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	var arguments []string
	place := strings.NewReplacer("/etc/nats/", config+"/", "/data", store)
	for _, argument := range s.Command {
		arguments = append(arguments, place.Replace(argument))
	}
	s.User = "65532:65532" // not even root, which it is in its image
	cmd := confined(t, s, filepath.Join(bin, "nats-server"), arguments...)
	for _, user := range natsUsers {
		cmd.Env = append(cmd.Env, user.variable+"="+passwordOf(user.name))
	}
	programtest.Start(t, "nats-server", cmd, false)
	programtest.Eventually(t, time.Minute, func() error {
		answer, err := http.Get("http://" + monitor + "/healthz")
		if err != nil {
			return err
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return errors.New(answer.Status)
		}
		return nil
	})
}

// TestSecretsOfComposeAreChecked runs the check that stands before all other
// services: it passes with what secrets.sh makes, and names what is missing.
func TestSecretsOfComposeAreChecked(t *testing.T) {
	root, made := makeSecrets(t)
	s := compose(t).Services["secrets"]
	mounted := mount(t, filepath.Join(root, "deploy/secrets/api"))
	secrets := variables(made[".env"])
	run := func(secrets map[string]string) (string, error) {
		script := strings.NewReplacer("$$", "$", "/secrets/", mounted+"/").Replace(s.Command[0])
		cmd := confined(t, s, s.Entrypoint[0], s.Entrypoint[1], script)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		for key, value := range secrets {
			cmd.Env = append(cmd.Env, key+"="+value)
		}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(secrets); err != nil {
		t.Fatalf("with all secrets: %v\n%s", err, out)
	}
	for name := range s.Environment {
		without := variables(made[".env"])
		delete(without, name)
		if out, err := run(without); err == nil || !strings.Contains(out, name+" is not set") {
			t.Errorf("without %s: %v, said %q", name, err, out)
		}
	}
	for _, file := range []string{"tokens.yaml", "fingerprint.key"} {
		if err := os.Rename(filepath.Join(mounted, file), filepath.Join(mounted, "away")); err != nil {
			t.Fatal(err)
		}
		if out, err := run(secrets); err == nil || !strings.Contains(out, file+" is missing") {
			t.Errorf("without %s: %v, said %q", file, err, out)
		}
		if err := os.Rename(filepath.Join(mounted, "away"), filepath.Join(mounted, file)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestServersOfComposeWriteToVolumesOnly holds the command lines of the images
// that are not here against what is mounted.
func TestServersOfComposeWriteToVolumesOnly(t *testing.T) {
	c := compose(t)
	folder := map[string]string{"prometheus": "/prometheus", "nats": "/data", "clickhouse": "/var/lib/clickhouse", "grafana": "/var/lib/grafana"}
	for name, path := range folder {
		s := c.Services[name]
		mounted := false
		for _, volume := range s.Volumes {
			source, at, _ := strings.Cut(volume, ":")
			_, declared := c.Volumes[source]
			mounted = mounted || declared && at == path
		}
		if !mounted {
			t.Errorf("%s writes to %s, which is no volume", name, path)
		}
	}
	if line := strings.Join(c.Services["prometheus"].Command, " "); !strings.Contains(line, "--storage.tsdb.path=/prometheus ") {
		t.Errorf("prometheus is started by %s", line)
	}
}
