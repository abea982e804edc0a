package steady

// Growth judges a run of n samples in which one column begins at first and
// gets more each time.
func Growth(column string, first, more float64, n int) []string {
	var samples []sample
	for i := range n {
		samples = append(samples, sample{column: first + float64(i)*more})
	}
	return growth(samples)
}

// Quantile is that of a histogram on a page.
func Quantile(page map[string]float64, name string, q float64) float64 {
	return newHistogram(page, name).quantile(q)
}
