package load

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// parsePS reads one line of ps -o time=,rss=, such as "  1:02.50  34816": CPU
// time as [[days-]hours:]minutes:seconds, memory in KiB.
func parsePS(line string) (sample, error) {
	fields := strings.Fields(line)
	if len(fields) != 2 {
		return sample{}, fmt.Errorf("ps answered %q, not a time and a size", line)
	}
	days, clock, found := strings.Cut(fields[0], "-")
	if !found {
		days, clock = "0", fields[0]
	}
	total, err := strconv.ParseFloat(days, 64)
	parts := strings.Split(clock, ":")
	for i, scale := len(parts), []float64{24, 60, 60}; err == nil && i > 0; i-- {
		var n float64
		n, err = strconv.ParseFloat(parts[len(parts)-i], 64)
		if i > len(scale) {
			err = fmt.Errorf("too many parts")
		} else {
			total = total*scale[len(scale)-i] + n
		}
	}
	if err != nil {
		return sample{}, fmt.Errorf("ps answered the time %q: %w", fields[0], err)
	}
	kib, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return sample{}, fmt.Errorf("ps answered the size %q: %w", fields[1], err)
	}
	return sample{cpu: time.Duration(total * float64(time.Second)), rss: kib << 10}, nil
}
