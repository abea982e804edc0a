package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"runtime/debug"
	"strings"
)

// bill is a bill of materials as CycloneDX 1.6 has it: what a program was built of,
// as the program itself says. Go writes into every program which modules are in it, by
// version and hash; nothing else can be, because nothing is linked to that is not Go.
type bill struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Serial       string       `json:"serialNumber"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Ref        string     `json:"bom-ref"`
	Type       string     `json:"type"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl,omitempty"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref  string   `json:"ref"`
	Uses []string `json:"dependsOn,omitempty"`
}

// billOf writes the bill of a program.
func billOf(file, program string, r *release) ([]byte, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read what %s was built of: %w", program, err)
	}
	sum, err := hashOf(file)
	if err != nil {
		return nil, err
	}
	root := component{
		Ref: purl(info.Main.Path, r.version) + "#cmd/" + program, Type: "application", Name: program, Version: r.version,
		PURL: purl(info.Main.Path, r.version) + "#cmd/" + program, Hashes: []hash{{"SHA-256", sum}},
		Properties: append([]property{{"sluice:commit", r.commit}, {"sluice:file", filepath.Base(file)}}, settings(info)...),
	}
	b := bill{
		Format: "CycloneDX", Spec: "1.6", Version: 1,
		// Of the bytes of the program, so that the same program has the same one.
		Serial:   fmt.Sprintf("urn:uuid:%s-%s-8%s-a%s-%s", sum[:8], sum[8:12], sum[13:16], sum[17:20], sum[20:32]),
		Metadata: metadata{Timestamp: r.at.Format("2006-01-02T15:04:05Z"), Component: root},
	}
	uses := dependency{Ref: root.Ref}
	for _, c := range append([]component{standard(info.GoVersion)}, modules(info)...) {
		b.Components = append(b.Components, c)
		b.Dependencies = append(b.Dependencies, dependency{Ref: c.Ref})
		uses.Uses = append(uses.Uses, c.Ref)
	}
	b.Dependencies = append([]dependency{uses}, b.Dependencies...)
	text, err := json.MarshalIndent(b, "", "  ")
	return append(text, '\n'), err
}

// standard is Go's own library.
func standard(version string) component {
	at := purl("std", strings.TrimPrefix(version, "go"))
	return component{Ref: at, Type: "library", Name: "std", Version: version, PURL: at}
}

// modules are those that are in a program. One that was replaced is the one that it
// was replaced by.
func modules(info *debug.BuildInfo) (all []component) {
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		c := component{Ref: purl(m.Path, m.Version), Type: "library", Name: m.Path, Version: m.Version, PURL: purl(m.Path, m.Version)}
		if m.Sum != "" {
			c.Properties = []property{{"go:sum", m.Sum}} // of all its files, as go.sum has it
		}
		all = append(all, c)
	}
	return all
}

// settings are those of the build that make another program.
func settings(info *debug.BuildInfo) (all []property) {
	for _, s := range info.Settings {
		switch s.Key {
		case "GOOS", "GOARCH", "GOAMD64", "GOARM64", "CGO_ENABLED", "-trimpath":
			all = append(all, property{"go:" + s.Key, s.Value})
		}
	}
	return all
}

// purl names a module as package-url has it.
func purl(path, version string) string {
	return "pkg:golang/" + path + "@" + url.PathEscape(version)
}
