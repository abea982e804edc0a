// Package fatal ends a test at the first error that it did not expect.
package fatal

import "testing"

// If ends the test when there is an error.
func If(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
