package console_test

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAssetsAreThoseOfTheLock: the committed files of npm packages match the committed
// lock file.
func TestAssetsAreThoseOfTheLock(t *testing.T) {
	const vendor = "assets/vendor/"
	sums, err := os.ReadFile(vendor + "SHA256SUMS")
	fatal(t, err)
	listed := map[string]bool{}
	for line := range strings.Lines(string(sums)) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			t.Fatalf("the line %q names no file", line)
		}
		content, err := os.ReadFile(vendor + fields[1])
		fatal(t, err)
		sum := sha256.Sum256(content)
		if got := hex.EncodeToString(sum[:]); got != fields[0] {
			t.Errorf("%s has the SHA-256 %s, want %s: make console-assets", fields[1], got, fields[0])
		}
		listed[fields[1]] = true
	}
	files, err := filepath.Glob(vendor + "*.*s*")
	fatal(t, err)
	for _, file := range files {
		name := filepath.Base(file)
		if (strings.HasSuffix(name, ".js") || strings.HasSuffix(name, ".css")) && !listed[name] {
			t.Errorf("%s is in no package: put it into the folder above", file)
		}
	}
	if !listed["package-lock.json"] || len(listed) < 4 {
		t.Errorf("SHA256SUMS lists %v", listed)
	}
}

// TestAssetsAreSmallAndKept: all assets are at most 500 KB compressed, and browsers can
// cache them.
func TestAssetsAreSmallAndKept(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	total := 0
	err := filepath.WalkDir("assets", func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.Contains(".js.css.svg", filepath.Ext(path)) || filepath.Ext(path) == "" {
			return err
		}
		req, err := http.NewRequest(http.MethodGet, s.url+"/"+path, nil)
		fatal(t, err)
		req.Header.Set("Accept-Encoding", "gzip")
		res, err := s.client.Do(req)
		fatal(t, err)
		defer res.Body.Close()
		packed, err := io.ReadAll(res.Body)
		fatal(t, err)
		if res.StatusCode != http.StatusOK || res.Header.Get("Content-Encoding") != "gzip" || res.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %s, packed by %q, kept %q", path, res.Status, res.Header.Get("Content-Encoding"), res.Header.Get("Cache-Control"))
		}
		content, err := os.ReadFile(path)
		fatal(t, err)
		r, err := gzip.NewReader(strings.NewReader(string(packed)))
		fatal(t, err)
		plain, err := io.ReadAll(r)
		fatal(t, err)
		if string(plain) != string(content) {
			t.Errorf("%s is sent as something else", path)
		}
		total += len(packed)
		return nil
	})
	fatal(t, err)
	const limit = 500_000
	if total > limit || total == 0 {
		t.Errorf("all assets have %d bytes as they are sent, want at most %d", total, limit)
	}
	t.Logf("all assets have %d bytes as they are sent", total)

	_, page := s.get("/sign-in")
	_, after, ok := strings.Cut(page, `src="/assets/console.js?`)
	if !ok {
		t.Fatalf("no script in\n%s", page)
	}
	hash, _, _ := strings.Cut(after, `"`)
	res, _ := s.get("/assets/console.js?" + hash)
	if kept := res.Header.Get("Cache-Control"); !strings.Contains(kept, "immutable") {
		t.Errorf("a script is cached %q, want forever by its hash", kept)
	}
}
