package endtoend

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"sluice/pkg/expect"
)

// saysItsVersion checks the linked version of the api in the command line, the route
// description and the metrics.
func (s *stack) saysItsVersion() {
	t := s.t
	if code, out := run(t, "api", "--version"); code != 0 || !strings.HasPrefix(out, "api v9.9.9 (commit c0ffee, go") {
		t.Errorf("--version prints %q, exit %d", out, code)
	}
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
	expect.Not(t, described.Info.Version != "v9.9.9" || described.Info.Commit != "c0ffee", "/openapi.json says %+v", described.Info)
	if status, page := s.page(s.ops, "/metrics"); status != http.StatusOK || !strings.Contains(page, `sluice_build_info{commit="c0ffee",go="go`) || !strings.Contains(page, `version="v9.9.9"} 1`) {
		t.Errorf("/metrics says %d, without sluice_build_info", status)
	}
}
