// Package expect compares the expected values of tests with the actual ones.
package expect

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Equal fails the test, without ending it, if two values differ, and shows the difference.
func Equal[T any](t testing.TB, what string, want, got T, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Not fails the test, without ending it, when something is wrong.
func Not(t testing.TB, wrong bool, format string, args ...any) {
	t.Helper()
	if wrong {
		t.Errorf(format, args...)
	}
}

// NoError fails the test, without ending it, when there is an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
