package deploy_test

import (
	"crypto/sha512"
	"encoding/base64"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sluice/pkg/embedded/clickhouse/library"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// TestTheEngineIsLockedByItsHash: the lock of every platform has the programs' engine version,
// and the SHA-512 of its package.
func TestTheEngineIsLockedByItsHash(t *testing.T) {
	locks, err := filepath.Glob("engine/*/package-lock.json")
	fatal.If(t, err)
	for _, file := range locks {
		platform := filepath.Base(filepath.Dir(file))
		var lock struct {
			Packages map[string]struct {
				Version, Integrity, Resolved string
				HasInstallScript             bool
			}
		}
		readJSON(t, file, &lock)
		engine, ok := lock.Packages["node_modules/@chdb/lib-"+platform]
		if !ok || len(lock.Packages) != 2 {
			t.Errorf("%s names %d packages, want itself and the engine of %s", file, len(lock.Packages), platform)
		}
		hash, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(engine.Integrity, "sha512-"))
		if err != nil || len(hash) != sha512.Size || engine.Version != library.Version || engine.HasInstallScript {
			t.Errorf("%s: version %q with hash %q, want %s with a SHA-512 and no script", file, engine.Version, engine.Integrity, library.Version)
		}
		expect.Not(t, engine.Resolved != "", "%s names a registry: %s", file, engine.Resolved)
	}
	expect.Not(t, len(locks) == 0, "no platform is locked")
	if made := regexp.MustCompile(`(?m)^ENGINE_VERSION\s*:= (.*)$`).FindSubmatch(read(t, "../Makefile")); made == nil || string(made[1]) != library.Version {
		t.Errorf("the Makefile fetches version %s, the programs need %s", made, library.Version)
	}
}
