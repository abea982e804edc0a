// Package fatal ends a test at its first failure.
package fatal

import "testing"

// If ends the test when there is an error.
func If(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// When ends the test when something is wrong.
func When(t testing.TB, wrong bool, format string, args ...any) {
	if wrong {
		t.Helper()
		t.Fatalf(format, args...)
	}
}
