// Package benchtest runs micro-benchmarks on the records of package load, and
// holds what they allocate against what they allocated before.
//
// A package keeps that in testdata/baseline.txt, in Go's benchmark format, with
// the figures that depend on the code only. docs/benchmarks.md tells how both
// are used.
package benchtest
