package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryPatchApplies: a fault that cannot be put into the tree proves nothing.
func TestEveryPatchApplies(t *testing.T) {
	patches, err := filepath.Glob("*.patch")
	if err != nil || len(patches) == 0 {
		t.Fatalf("%d patches, %v", len(patches), err)
	}
	list, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, patch := range patches {
		text, err := os.ReadFile(patch)
		if err != nil {
			t.Fatal(err)
		}
		if err := git(t.Context(), "../../../..", text, "apply", "--check"); err != nil {
			t.Errorf("%s does not apply any more: write it anew: %v", patch, err)
		}
		if number := strings.TrimLeft(strings.SplitN(patch, "-", 2)[0], "0"); !strings.Contains(string(list), "\n| "+number+" |") {
			t.Errorf("%s is not in the list of README.md", patch)
		}
	}
}
