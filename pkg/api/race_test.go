//go:build race

package api_test

// slowdown is how much more time and memory the race detector takes.
const slowdown = 8
