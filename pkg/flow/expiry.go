package flow

import "time"

// UTCDay is the UTC day of a time in ms since 1970, such as 2025-11-21. Days compare
// as texts; the empty one is before all others.
func UTCDay(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.DateOnly) }

// StoredDay is rows of neighbouring blocks of a lane that were stored on one day: the
// UTC day of their stored_at, by which rows, counters, and these totals expire.
type StoredDay struct {
	Day  string `json:"day"` // such as 2025-11-21
	Rows uint64 `json:"rows"`
	Last uint64 `json:"last"` // the last message of these blocks
}

// MaxStoredDays bounds LaneState.StoredDays. Beyond it the two in front become one,
// under the later of both days.
const MaxStoredDays = 1024

// addStored adds rows behind those that are there.
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

// Unexpired is how many of the rows in Totals are kept when all that was stored up to
// the expiry line may have expired, and the last message that has left one of the
// others, 0 when none has: messages behind it have all of their rows.
//
// known is false when it cannot be told, as the list is full and part of its first
// entry, which is of several days, may have expired.
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

// Doubt is the counters of a day of records, as far as these were stored on another:
// they may be wrong. Both are UTC, such as 2025-11-21.
type Doubt struct {
	Day    string `json:"day"`
	Stored string `json:"stored"` // when it expires, nothing of it can be proved any more
}
