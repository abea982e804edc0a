package main

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestTheBillNamesWhatIsInAProgram: of this very one, whose modules are known.
func TestTheBillNamesWhatIsInAProgram(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &release{version: "v9.9.9", commit: "c0ffee", at: time.Unix(1_763_701_200, 0).UTC()}
	text, err := billOf(program, "api", r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := billOf(program, "api", r)
	if err != nil || !bytes.Equal(text, again) {
		t.Errorf("the same program has another bill (%v)", err)
	}
	var b bill
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	names := map[string]component{}
	refs := map[string]bool{b.Metadata.Component.Ref: true}
	for _, c := range b.Components {
		names[c.Name] = c
		if refs[c.Ref] {
			t.Errorf("%s is named twice", c.Ref)
		}
		refs[c.Ref] = true
	}
	kong := names["github.com/alecthomas/kong"]
	if kong.Version == "" || kong.PURL != "pkg:golang/github.com/alecthomas/kong@"+kong.Version || len(kong.Properties) != 1 || !strings.HasPrefix(kong.Properties[0].Value, "h1:") {
		t.Errorf("the bill has %+v, want kong with its version and hash", kong)
	}
	if _, there := names["std"]; !there {
		t.Error("the bill lacks Go's own library")
	}
	for _, d := range b.Dependencies {
		if !refs[d.Ref] || slices.ContainsFunc(d.Uses, func(ref string) bool { return !refs[ref] }) {
			t.Errorf("%s, or what it uses, is not in the bill", d.Ref)
		}
	}
	if c := b.Metadata.Component; c.Version != "v9.9.9" || len(c.Hashes) != 1 || len(c.Hashes[0].Content) != 64 || b.Metadata.Timestamp != "2025-11-21T05:00:00Z" {
		t.Errorf("the bill is of %+v at %s", c, b.Metadata.Timestamp)
	}
}
