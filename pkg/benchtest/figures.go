package benchtest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Figures of a benchmark by their unit.
type Figures map[string]float64

// judged are the units that depend on the code and not on the machine.
var judged = []string{"B/op", "allocs/op", "encoded-B/record"}

// packageOf returns the package the output is of.
func packageOf(out []byte) string {
	for line := range strings.Lines(string(out)) {
		if pkg, found := strings.CutPrefix(line, "pkg: "); found {
			return strings.TrimSpace(pkg)
		}
	}
	return ""
}

// Parse reads the output of benchmarks, and of each the least of every figure
// that is judged.
func Parse(out []byte) map[string]Figures {
	all := map[string]Figures{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		f := all[fields[0]]
		if f == nil {
			f = Figures{}
			all[fields[0]] = f
		}
		for pair := range slices.Chunk(fields[2:], 2) {
			value, err := strconv.ParseFloat(pair[0], 64)
			if err != nil || len(pair) < 2 || !slices.Contains(judged, pair[1]) {
				continue
			}
			if least, known := f[pair[1]]; !known || value < least {
				f[pair[1]] = value
			}
		}
	}
	return all
}

// Format writes the figures of a package so that Parse and benchstat read them.
func Format(pkg string, all map[string]Figures) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "pkg: %s\n", pkg)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&out, "%s 1", name)
		for _, unit := range judged {
			if value, known := all[name][unit]; known {
				fmt.Fprintf(&out, " %v %s", value, unit)
			}
		}
		fmt.Fprintln(&out)
	}
	return out.Bytes()
}
