// Package expect compares the expected values of tests with the actual ones.
package expect

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Equal fails the test, without ending it, if two values differ, and shows the difference.
func Equal(t testing.TB, what string, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
