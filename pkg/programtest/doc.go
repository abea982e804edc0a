// Package programtest builds the programs of this checkout and runs them as
// processes, for tests, trials and measurements: at addresses that no other process is
// given, without the settings of their caller, and gone when they are.
package programtest
