package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sluice/pkg/fatal"
)

// confined is a program as docker compose runs it: as the service's user, in a read-only
// folder. Only a test that runs as root changes the user; others are unprivileged already.
func confined(t *testing.T, s service, program string, arguments ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(program, arguments...)
	cmd.Dir = reachable(t)
	fatal.If(t, os.Chmod(cmd.Dir, 0o555))
	if os.Getuid() != 0 {
		return cmd
	}
	user, group, _ := strings.Cut(s.User, ":")
	uid, err := strconv.ParseUint(user, 10, 32)
	if err != nil {
		t.Fatalf("the service runs as user %q, want a number", s.User)
	}
	gid, err := strconv.ParseUint(group, 10, 32)
	fatal.When(t, err != nil, "the service runs as group %q, want a number", group)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	return cmd
}

// reachable is a folder that every user can enter, unlike t.TempDir.
func reachable(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Dir(dir)} {
		fatal.If(t, os.Chmod(path, 0o755))
	}
	return dir
}

// mount copies a folder as a container mounts it: with its modes, without the folders above.
func mount(t *testing.T, source string) string {
	t.Helper()
	target := reachable(t)
	files, err := os.ReadDir(source)
	fatal.If(t, err)
	for _, file := range files {
		copyWithMode(t, filepath.Join(source, file.Name()), filepath.Join(target, file.Name()))
	}
	info, err := os.Stat(source)
	fatal.If(t, err)
	fatal.If(t, os.Chmod(target, info.Mode()))
	return target
}

func copyWithMode(t *testing.T, source, target string) {
	t.Helper()
	info, err := os.Stat(source)
	fatal.If(t, err)
	fatal.If(t, os.WriteFile(target, read(t, source), info.Mode()))
	if err := os.Chmod(target, info.Mode()); err != nil { // whatever the umask
		t.Fatal(err)
	}
}

// TestSecretsOfComposeAreChecked runs the service secrets: it succeeds with the secrets of
// secrets.sh, and names a missing one.
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
			t.Errorf("without %s: %v, %q", name, err, out)
		}
	}
	for _, file := range []string{"tokens.yaml", "fingerprint.key"} {
		fatal.If(t, os.Rename(filepath.Join(mounted, file), filepath.Join(mounted, "away")))
		if out, err := run(secrets); err == nil || !strings.Contains(out, file+" is missing") {
			t.Errorf("without %s: %v, %q", file, err, out)
		}
		fatal.If(t, os.Rename(filepath.Join(mounted, "away"), filepath.Join(mounted, file)))
	}
}
