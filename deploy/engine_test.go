package deploy_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"sluice/pkg/embedded/clickhouse/library"
)

// TestTheEngineIsLockedByItsHash: every platform that can be installed names
// the version the programs are made for, and the SHA-512 of its package.
func TestTheEngineIsLockedByItsHash(t *testing.T) {
	locks, err := filepath.Glob("engine/*/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
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
		if engine.Resolved != "" {
			t.Errorf("%s names a registry: %s", file, engine.Resolved)
		}
	}
	if len(locks) == 0 {
		t.Error("no platform is locked")
	}
	if made := regexp.MustCompile(`(?m)^ENGINE_VERSION\s*:= (.*)$`).FindSubmatch(read(t, "../Makefile")); made == nil || string(made[1]) != library.Version {
		t.Errorf("the Makefile fetches version %s, the programs are made for %s", made, library.Version)
	}
}

// TestAnotherEngineIsNotInstalled runs make engine against a registry that
// sends another package under the engine's name and version.
func TestAnotherEngineIsNotInstalled(t *testing.T) {
	platforms, err := filepath.Glob("engine/" + map[string]string{"linux": "linux-*", "darwin": "darwin-*"}[runtime.GOOS])
	if err != nil || len(platforms) == 0 {
		t.Fatalf("no engine is locked for %s: %v", runtime.GOOS, err)
	}
	registry := foreignRegistry(t)
	root := t.TempDir()
	if err := os.CopyFS(filepath.Join(root, "deploy", "engine"), os.DirFS("engine")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "Makefile"), read(t, "../Makefile"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("make", "-C", root, "engine")
	cmd.Env = append(os.Environ(), "npm_config_registry="+registry, "npm_config_cache="+t.TempDir(), "MAKEFLAGS=")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "EINTEGRITY") {
		t.Errorf("make engine: %v, want npm's EINTEGRITY\n%s", err, out)
	}
	installed, err := filepath.Glob(filepath.Join(root, ".cache/clickhouse/node_modules/@chdb/*/libchdb.so"))
	if err != nil || len(installed) > 0 {
		t.Errorf("installed is %v, %v", installed, err)
	}
}

// foreignRegistry is an npm registry that has every package in the engine's
// version, with one library of its own making.
func foreignRegistry(t *testing.T) string {
	t.Helper()
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.ReplaceAll(strings.TrimPrefix(r.URL.Path, "/"), "%2f", "/")
		if pkg, ok := strings.CutSuffix(name, "/-/package.tgz"); ok {
			w.Write(tarball(t, pkg))
			return
		}
		// npm asks for the place of a locked package by its name, or guesses it.
		if at := strings.Index(name, "/-/"); at > 0 {
			w.Write(tarball(t, name[:at]))
			return
		}
		sum := sha512.Sum512(tarball(t, name))
		fmt.Fprintf(w, `{"name":%q,"dist-tags":{"latest":%[2]q},"versions":{%[2]q:{"name":%[1]q,"version":%[2]q,"dist":{"tarball":"%[3]s/%[1]s/-/package.tgz","integrity":"sha512-%[4]s"}}}}`,
			name, library.Version, server.URL, base64.StdEncoding.EncodeToString(sum[:]))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func tarball(t *testing.T, name string) []byte {
	t.Helper()
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	archive := tar.NewWriter(zipped)
	for _, file := range []struct{ name, content string }{
		{"package/package.json", fmt.Sprintf(`{"name":%q,"version":%q}`, name, library.Version)},
		{"package/libchdb.so", "another library"},
	} {
		if err := archive.WriteHeader(&tar.Header{Name: file.name, Mode: 0o644, Size: int64(len(file.content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write([]byte(file.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
