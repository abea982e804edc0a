package flow

import "time"

// UTCDay is the UTC day of a time in ms since 1970, such as 2025-11-21. Days compare as
// strings; the empty one is before all others.
func UTCDay(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.DateOnly) }

// StoredDay is rows of consecutive blocks of a lane with one stored day: the UTC day of
// their stored_at, by which rows, counters, and these totals expire.
type StoredDay struct {
	Day  string `json:"day"` // such as 2025-11-21
	Rows uint64 `json:"rows"`
	Last uint64 `json:"last"` // the last message of these blocks
}

// MaxStoredDays bounds LaneState.StoredDays. Beyond it the first two become one, under
// the later day.
const MaxStoredDays = 1024

// addStored appends rows.
func (s *LaneState) addStored(d StoredDay) {
	n := len(s.StoredDays)
	switch {
	case d.Rows == 0:
		return
	case n > 0 && s.StoredDays[n-1].Day == d.Day:
		d.Rows += s.StoredDays[n-1].Rows
		s.StoredDays[n-1] = d
		return
	}
	if s.StoredDays = append(s.StoredDays, d); n < MaxStoredDays {
		return
	}
	s.StoredDays[1].Day = max(s.StoredDays[0].Day, s.StoredDays[1].Day)
	s.StoredDays[1].Rows += s.StoredDays[0].Rows
	s.StoredDays = s.StoredDays[1:]
}

// Unexpired counts the rows in Totals stored after the expiry line, which are all kept.
// Messages after expired, 0 when none, still have all of their rows.
//
// known is false when the list is full and its first entry, which covers several days,
// may have expired in part.
func (s LaneState) Unexpired(line string) (rows, expired uint64, known bool) {
	known = true
	for i, d := range s.StoredDays {
		if d.Day <= line {
			expired = d.Last
			continue
		}
		rows += d.Rows
		if i == 0 && line != "" && len(s.StoredDays) == MaxStoredDays {
			known = false
		}
	}
	return rows, expired, known
}

// Doubt marks the counters of a day of records, stored on another day, as perhaps wrong.
// Both days are UTC, such as 2025-11-21.
type Doubt struct {
	Day    string `json:"day"`
	Stored string `json:"stored"` // once it expires, its counters cannot be proved
}
