// Package benchtest runs micro-benchmarks on the records of package load, and reports
// what they cost by record. docs/benchmarks.md tells how they are used.
package benchtest
