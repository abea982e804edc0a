// Package programtest builds the programs of this checkout and runs them as processes, for
// tests, trials, and measurements: at reserved addresses, without settings of the caller,
// and never longer than it.
package programtest
