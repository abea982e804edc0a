// Package measure posts to a Sluice of its own, in separate processes, and
// measures what the goals of the project are about: CPU per record, rate,
// waits, memory, allocations and bytes. After every run it compares what is
// stored with what was acknowledged; it writes down what it saw as a page.
package measure
