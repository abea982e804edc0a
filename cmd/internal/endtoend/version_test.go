package endtoend

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/pkg/programtest"
)

// TestAProgramSaysItsVersion: as it was linked in, at the command line, in the
// description of the routes and among the metrics.
func TestAProgramSaysItsVersion(t *testing.T) {
	t.Parallel()
	api := filepath.Join(t.TempDir(), "api")
	build := exec.Command("go", "build", "-pgo=off", "-ldflags", "-w -X sluice/cmd/internal/run.version=v9.9.9 -X sluice/cmd/internal/run.commit=c0ffee", "-o", api, "sluice/cmd/api")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(api, "--version").Output()
	if err != nil || !strings.HasPrefix(string(out), "api v9.9.9 (commit c0ffee, go") {
		t.Errorf("--version prints %q (%v)", out, err)
	}
	if code, out := run(t, "sluice", "--version"); code != 0 || !strings.HasPrefix(out, "sluice ") {
		t.Errorf("sluice --version: exit %d, %q", code, out)
	}

	s := newStack(t)
	if err := os.Symlink(api, filepath.Join(bin, "api-v9.9.9")); err != nil {
		t.Fatal(err)
	}
	start(t, "api-v9.9.9", "--http", s.http, "--ops", s.ops, "--nats", "nats://"+programtest.Address(), "--tokens", s.tokenFile(), "--fingerprint-key", filepath.Join(t.TempDir(), "key"))
	var described struct {
		Info struct {
			Version string
			Commit  string `json:"x-commit"`
		}
	}
	eventually(t, 20*time.Second, func() error {
		res, err := s.client.Get("http://" + s.http + "/openapi.json")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		return json.NewDecoder(res.Body).Decode(&described)
	})
	if described.Info.Version != "v9.9.9" || described.Info.Commit != "c0ffee" {
		t.Errorf("/openapi.json says %+v", described.Info)
	}
	if status, page := s.page(s.ops, "/metrics"); status != http.StatusOK || !strings.Contains(page, `sluice_build_info{commit="c0ffee",go="go`) || !strings.Contains(page, `version="v9.9.9"} 1`) {
		t.Errorf("/metrics says %d, without sluice_build_info", status)
	}
}
