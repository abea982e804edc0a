package deploy_test

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/auth"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// makeSecrets runs secrets.sh in a copy of the folders, and returns its root and the created
// files.
func makeSecrets(t *testing.T) (root string, made map[string]string) {
	t.Helper()
	root = t.TempDir()
	script := filepath.Join(root, "deploy", "secrets.sh")
	fatal.If(t, os.MkdirAll(filepath.Dir(script), 0o755))
	fatal.If(t, os.WriteFile(script, read(t, "secrets.sh"), 0o755))
	return root, runSecrets(t, root)
}

func runSecrets(t *testing.T, root string) map[string]string {
	t.Helper()
	if out, err := exec.Command("sh", filepath.Join(root, "deploy", "secrets.sh")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// Other users of the machine cannot enter; the container's user reads the inner folder.
	for name, mode := range map[string]os.FileMode{"deploy/secrets": 0o700, "deploy/secrets/api": 0o755} {
		info, err := os.Stat(filepath.Join(root, name))
		fatal.If(t, err)
		if info.Mode().Perm() != mode {
			t.Errorf("%s has mode %v, want %v", name, info.Mode().Perm(), mode)
		}
	}
	made := map[string]string{}
	for name, mode := range map[string]os.FileMode{".env": 0o600, "deploy/secrets/token": 0o600, "deploy/secrets/api/tokens.yaml": 0o644, "deploy/secrets/api/fingerprint.key": 0o644} {
		path := filepath.Join(root, name)
		info, err := os.Stat(path)
		fatal.If(t, err)
		if info.Mode().Perm() != mode {
			t.Errorf("%s has mode %v, want %v", name, info.Mode().Perm(), mode)
		}
		made[name] = string(read(t, path))
	}
	return made
}

func TestSecretsAreMadeOnceAndWork(t *testing.T) {
	root, first := makeSecrets(t)
	second := runSecrets(t, root)
	for name := range first {
		expect.Not(t, first[name] != second[name], "%s was made again", name)
	}

	// An older .env lacks the passwords of NATS users.
	older := regexp.MustCompile(`(?m)^NATS_.*\n`).ReplaceAllString(first[".env"], "")
	older = strings.TrimSuffix(older, "\n")
	fatal.If(t, os.WriteFile(filepath.Join(root, ".env"), []byte(older), 0o600))
	completed := runSecrets(t, root)[".env"]
	expect.Not(t, !strings.HasPrefix(completed, older+"\n") || len(variables(completed)) != len(variables(first[".env"])), "an older .env is completed to:\n%s", completed)
	first[".env"] = completed

	authenticator, err := auth.New(auth.Config{Tokens: filepath.Join(root, "deploy/secrets/api/tokens.yaml")}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	fatal.If(t, err)
	token := strings.TrimSpace(first["deploy/secrets/token"])
	if _, err := authenticator.Authenticate("Bearer " + token); err != nil {
		t.Errorf("the token is not accepted: %v", err)
	}
	expect.Not(t, strings.Contains(first["deploy/secrets/api/tokens.yaml"], token), "the token itself is in the file of the api")
	needed := regexp.MustCompile(`\$\{([A-Z_]+_PASSWORD)-\}`).FindAllStringSubmatch(string(read(t, "../docker-compose.yml")), -1)
	for _, name := range needed {
		if !regexp.MustCompile(`(?m)^` + name[1] + `=[a-z][0-9a-f]{64}$`).MatchString(first[".env"]) {
			t.Errorf(".env has no %s that begins with a letter", name[1])
		}
	}
	expect.Not(t, len(needed) == 0, "docker-compose.yml needs no secret")
}
