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

// formatFile holds the format number of a data folder.
const formatFile = "format"

// MakeFolder creates a data folder, or fails if it has another format. A crash before
// the file is written leaves a folder without servers, which the next start accepts.
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
		return fmt.Errorf("folder %s has format %s, but this version of Sluice reads only format %s: use the version that created it, or another folder", folder, strings.TrimSpace(string(is)), want)
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	for _, server := range []string{"nats", "clickhouse"} {
		if _, err := os.Stat(filepath.Join(folder, server)); err == nil {
			return fmt.Errorf("folder %s has format 0, but this version of Sluice reads only format %s: use the version that created it, or another folder", folder, want)
		}
	}
	return os.WriteFile(file, []byte(want+"\n"), 0o600)
}
