package run

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version and commit are linked in by make; else they are what Go knows of what it
// has built.
var version, commit string

// unknown is said of a program that was built without its repository.
const unknown = "unknown"

// Version is which version of Sluice this is, such as v0.1.0, and the commit it was
// built from.
func Version() (v, c string) {
	v, c = version, commit
	if built, ok := debug.ReadBuildInfo(); ok {
		if v == "" && built.Main.Version != "(devel)" {
			v = built.Main.Version
		}
		for _, s := range built.Settings {
			if c == "" && s.Key == "vcs.revision" {
				c = s.Value
			}
		}
	}
	return cmp.Or(v, unknown), cmp.Or(c, unknown)
}

// versionLine is what --version prints.
func versionLine(program string) string {
	v, c := Version()
	return fmt.Sprintf("%s %s (commit %s, %s %s/%s)", program, v, c, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
