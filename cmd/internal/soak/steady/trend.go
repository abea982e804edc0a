package steady

import (
	"fmt"
	"slices"
	"strings"
)

// growth names every column whose last third is beyond what its middle third
// allows. The first third is the start, when everything grows.
func growth(samples []sample) (grown []string) {
	third := len(samples) / 3
	for _, c := range columns {
		middle, last := median(samples[third:2*third], c.name), median(samples[2*third:], c.name)
		if most := middle*(1+c.ratio) + c.slack; last > most {
			grown = append(grown, fmt.Sprintf("%s grew from %.0f to %.0f, at most %.0f is right", c.name, middle/c.unit, last/c.unit, most/c.unit))
		}
	}
	return grown
}

func median(samples []sample, name string) float64 {
	var all []float64
	for _, s := range samples {
		all = append(all, s[name])
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// header and row are the table.
func header() string {
	var b strings.Builder
	b.WriteString("   time")
	for _, c := range columns {
		fmt.Fprintf(&b, "  %s", title(c))
	}
	return b.String() + "  " + fresh + "\n"
}

func row(seconds int, s sample) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%6ds", seconds)
	for _, c := range columns {
		fmt.Fprintf(&b, "  %*.0f", len(title(c)), s[c.name]/c.unit)
	}
	return fmt.Sprintf("%s  %*.3g\n", &b, len(fresh), s[fresh])
}

func title(c column) string {
	if c.unit == mib {
		return c.name + " MiB"
	}
	return c.name
}
