package endtoend

import (
	"bytes"
	"fmt"
	"testing"

	"sluice/cmd/internal/upgrade/rolling"
)

// TestRollingRestarts restarts two apis and two ingesters one after the other, five
// times, while records and changes come in: nothing is lost or duplicated, and the
// client's next attempt within a second settles every request. make upgrade does the
// same with two versions.
func TestRollingRestarts(t *testing.T) {
	t.Parallel()
	cfg := rolling.Config{Bin: bin, Dir: t.TempDir(), Rate: 500}
	for i := range 5 {
		cfg.Waves = append(cfg.Waves, rolling.Wave{Name: fmt.Sprintf("restart %d", i+1), Bin: bin})
	}
	var said bytes.Buffer
	cfg.Out = &said
	got, err := rolling.Run(t.Context(), cfg)
	t.Log(said.String())
	if err != nil {
		t.Fatal(err)
	}
	if got.Replaced != 20 || got.Records == 0 || got.Fields == 0 {
		t.Errorf("%+v, want 20 processes replaced while records and changes came in", got)
	}
}
