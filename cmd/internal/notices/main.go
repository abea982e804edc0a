// Command notices prints the licences of the three programs of a platform: of each module,
// Go, and the console's files: notices OS ARCH.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	// For go list, whose platform may be another than that of this program.
	err := fmt.Errorf("%d arguments, want an operating system and an architecture", len(os.Args)-1)
	if len(os.Args) == 3 {
		err = errors.Join(os.Setenv("GOOS", os.Args[1]), os.Setenv("GOARCH", os.Args[2]), write(os.Stdout, "."))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
}

// part has its own licences: a module, Go, or a file of the console.
type part struct {
	name  string
	files map[string]bool // paths of its licences
}

var licence = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([._-].*)?$`)

// find adds the licences of a folder and of those above it, up to the root.
func (p part) find(folder, root string) error {
	for ; ; folder = filepath.Dir(folder) {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if licence.MatchString(e.Name()) && e.Type().IsRegular() && filepath.Ext(e.Name()) != ".go" {
				p.files[filepath.Join(folder, e.Name())] = true
			}
		}
		if folder == root || !strings.HasPrefix(folder, root) {
			return nil
		}
	}
}

// write prints the notices of the programs of the checkout at root. A part without a
// licence is an error.
func write(w io.Writer, root string) error {
	said, err := run(root, "list", "-deps", "-json=Dir,Standard,Module", "./cmd/api", "./cmd/ingester", "./cmd/sluice")
	if err != nil {
		return err
	}
	parts := map[string]part{}
	for d := json.NewDecoder(bytes.NewReader(said)); ; {
		var of struct {
			Dir    string
			Module *struct {
				Path, Version, Dir string
				Main               bool
			}
		}
		if err := d.Decode(&of); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("list the modules of the programs: %w", err)
		}
		if m := of.Module; m != nil && !m.Main {
			if _, ok := parts[m.Path]; !ok {
				parts[m.Path] = part{m.Path + " " + m.Version, map[string]bool{}}
			}
			if err := parts[m.Path].find(of.Dir, m.Dir); err != nil {
				return err
			}
		}
	}
	goroot, err := run(root, "env", "GOROOT", "GOVERSION")
	if err != nil {
		return err
	}
	folder, version, _ := strings.Cut(strings.TrimSpace(string(goroot)), "\n")
	parts["Go"] = part{"Go " + version, map[string]bool{filepath.Join(folder, "LICENSE"): true}}
	vendor, err := filepath.Glob(filepath.Join(root, "pkg/console/assets/vendor/LICENSE.*"))
	if err != nil {
		return err
	}
	for _, file := range vendor {
		name := strings.TrimPrefix(filepath.Ext(file), ".")
		parts[name] = part{name + " (in the console)", map[string]bool{file: true}}
	}
	fmt.Fprint(w, "Sluice includes the following, each under its licence.\n")
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		p := parts[name]
		if len(p.files) == 0 {
			return fmt.Errorf("%s has no licence file: check whether it may be distributed", p.name)
		}
		for _, file := range slices.Sorted(maps.Keys(p.files)) {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "\n%s\n%s, %s\n\n%s\n", strings.Repeat("=", 80), p.name, filepath.Base(file), bytes.TrimSpace(text))
		}
	}
	return nil
}

func run(root string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}
