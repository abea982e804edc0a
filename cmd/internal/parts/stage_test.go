package parts_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/cmd/internal/parts"
	"sluice/pkg/load"
	"sluice/pkg/programtest"
)

// TestAStageStoresWhatIsPosted also sees that what is stored twice is noticed:
// by the real engine, as a bench asks it.
func TestAStageStoresWhatIsPosted(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	if err := programtest.BuildPlain(t.Context(), bin); err != nil {
		t.Fatal(err)
	}
	s, err := parts.Start(t.Context(), bin, filepath.Join(dir, "stage"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.AddIngester(t.Context()); err != nil {
		t.Fatal(err)
	}
	report, err := load.Run(t.Context(), load.Config{URL: s.URL, Token: s.Token, Records: 2000, Seed: 1, Stored: load.StoredIn(s.HTTP)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.StopLast(); err != nil {
		t.Error(err)
	}
	m, err := s.Part(parts.API).Metrics(t.Context())
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

func TestAPartThatEndsIsNeverReady(t *testing.T) {
	dir := t.TempDir()
	p, err := parts.Spawn(dir, "early", programtest.Address(), "false")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("a program that has ended is ready or not: %v", err)
	}
	if err := p.Stop(); err == nil {
		t.Error("that it failed is not said")
	}
	if _, err := os.Stat(filepath.Join(dir, "early.log")); err != nil {
		t.Error(err)
	}
}
