package deployment_test

import (
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/load"
	"sluice/pkg/programtest"
)

// TestADeploymentStoresWhatIsPosted also checks that duplicates in the real engine are
// found, as a benchmark does.
func TestADeploymentStoresWhatIsPosted(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	fatal.If(t, programtest.BuildPlain(t.Context(), bin))
	s, err := deployment.Start(t.Context(), deployment.Config{Bin: bin, Dir: filepath.Join(dir, "deployment")})
	fatal.If(t, err)
	defer func() {
		expect.NoError(t, s.Stop())
	}()
	second, err := s.AddIngester(t.Context())
	fatal.If(t, err)
	report, err := load.Run(t.Context(), load.Config{URL: s.URL, Token: s.Token, Records: 2000, Seed: 1, Stored: load.StoredIn(s.HTTP)})
	fatal.If(t, err)
	expect.NoError(t, s.Remove(second))
	m, err := s.Process(deployment.API).Metrics(t.Context())
	if err != nil || m["sluice_api_records_total"] != 2000 {
		t.Errorf("the api counts %v records (%v), want 2000", m["sluice_api_records_total"], err)
	}
	double := strings.NewReader("INSERT INTO flow.records SELECT * FROM flow.records LIMIT 1")
	res, err := http.Post("http://"+s.HTTP+"/", "text/plain", double)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatal(err, res)
	}
	res.Body.Close()
	if err := load.StoredIn(s.HTTP)(t.Context(), report.Acked); !errors.Is(err, load.ErrNotStored) {
		t.Errorf("a record that is there twice gives %v, want %v", err, load.ErrNotStored)
	}
}
