package warehouse

import "time"

// months counts the months in which points in time fall, in ms since 1970: an
// insert makes a part of flow.records for each.
func months(points []int64) int {
	type span struct{ from, to int64 }
	var seen []span
	var last span
next:
	for _, ms := range points {
		if last.from <= ms && ms < last.to {
			continue
		}
		for _, last = range seen {
			if last.from <= ms && ms < last.to {
				continue next
			}
		}
		year, month, _ := time.UnixMilli(ms).UTC().Date()
		last = span{
			time.Date(year, month, 1, 0, 0, 0, 0, time.UTC).UnixMilli(),
			time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC).UnixMilli(),
		}
		seen = append(seen, last)
	}
	return len(seen)
}
