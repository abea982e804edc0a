// Package programtest builds the programs of this checkout and runs them as
// processes, for tests, trials and measurements: at addresses that nobody else is
// given, without settings of whoever runs them, and gone when they are.
package programtest
