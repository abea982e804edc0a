// Package expect compares what a test wants with what it got.
package expect

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Equal fails the test, which goes on, when two values differ, and shows where.
func Equal(t testing.TB, what string, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
