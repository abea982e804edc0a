package run

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"sluice/pkg/flow"
)

// formatFile is the file of a data folder that says of which format it is.
const formatFile = "format"

// MakeFolder makes a data folder, or fails when there is one of another format. A crash
// before the file is written leaves a folder without servers, which the next start takes.
func MakeFolder(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	want := strconv.Itoa(flow.Format)
	file := filepath.Join(folder, formatFile)
	is, err := os.ReadFile(file)
	switch {
	case err == nil && strings.TrimSpace(string(is)) == want:
		return nil
	case err == nil:
		return fmt.Errorf("folder %s has format %s, and this version of Sluice reads format %s alone: use the version that made it, or another folder", folder, strings.TrimSpace(string(is)), want)
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	for _, server := range []string{"nats", "clickhouse"} {
		if _, err := os.Stat(filepath.Join(folder, server)); err == nil {
			return fmt.Errorf("folder %s has format 0, from before formats had numbers, and this version of Sluice reads format %s alone: use the version that made it, or another folder", folder, want)
		}
	}
	return os.WriteFile(file, []byte(want+"\n"), 0o600)
}
