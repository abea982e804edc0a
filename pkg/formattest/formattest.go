// Package formattest keeps what released versions have written, in
// testdata/formats of the package that reads it. Versions run side by side during
// an upgrade, and what one has written outlives it, so each later version has to
// read it.
package formattest

import (
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const folder = "testdata/formats"

var freeze = flag.String("freeze", "", "write "+folder+"/VERSION.json, such as v0.2, of what this version writes; one that is there stays")

// Format is what a version has written, and what it means.
type Format[Written, Meant any] struct {
	Written Written `json:"written"`
	Meant   Meant   `json:"meant"`
}

// Check holds this version against what is kept: what it writes is what the newest
// release wrote, and what any release wrote means to it what it meant then. read
// gives the meaning of what was written.
//
// A failure of the first kind is not wrong by itself: the format has changed. Where
// versions side by side can live with that (docs/releases.md), it is frozen
// under the name of the version to come: go test PACKAGE -run Formats -freeze v0.2
func Check[Written, Meant any](t *testing.T, written Written, read func(*testing.T, Written) Meant, opts ...cmp.Option) {
	t.Helper()
	if *freeze != "" {
		write(t, *freeze, Format[Written, Meant]{written, read(t, written)})
	}
	versions := versions(t)
	for i, version := range versions {
		t.Run(version, func(t *testing.T) {
			var kept Format[Written, Meant]
			text, err := os.ReadFile(filepath.Join(folder, version+".json"))
			if err == nil {
				err = json.Unmarshal(text, &kept)
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(kept.Meant, read(t, kept.Written), opts...); diff != "" {
				t.Errorf("what %s has written is read otherwise (-want +got):\n%s", version, diff)
			}
			if i < len(versions)-1 {
				return
			}
			if diff := cmp.Diff(kept.Written, written, opts...); diff != "" {
				t.Errorf("this version writes otherwise than %s: if both can run side by side (docs/releases.md), freeze it under the name of the version to come (-%s +now):\n%s", version, version, diff)
			}
		})
	}
}

// versions are the names of what is kept, oldest first.
func versions(t *testing.T) []string {
	t.Helper()
	files, err := fs.Glob(os.DirFS(folder), "v*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has nothing that a release wrote (%v)", folder, err)
	}
	names := make([]string, len(files))
	for i, file := range files {
		names[i] = strings.TrimSuffix(file, ".json")
		number(t, names[i])
	}
	slices.SortFunc(names, func(a, b string) int { return slices.Compare(number(t, a), number(t, b)) })
	return names
}

// number reads v0.10 as 0 and 10.
func number(t *testing.T, version string) []int {
	t.Helper()
	var major, minor int
	if _, err := fmt.Sscanf(version, "v%d.%d", &major, &minor); err != nil || version != fmt.Sprintf("v%d.%d", major, minor) {
		t.Fatalf("%s/%s.json: a version is called v0.2", folder, version)
	}
	return []int{major, minor}
}

func write(t *testing.T, version string, format any) {
	t.Helper()
	number(t, version)
	text, err := json.MarshalIndent(format, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(filepath.Join(folder, version+".json"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatalf("freeze %s: %v", version, err)
	}
	if _, err := file.Write(append(text, '\n')); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}
