// Package steady posts to a Sluice of its own at a constant rate and judges
// whether anything grows that should not.
package steady
