package stream

import "time"

// Origin is what names a dead letter in its subjects.
func Origin(d DeadLetter) string { return d.origin }

// KeepFrom is what a Purger keeps.
var KeepFrom = keepFrom

// SetMargin sets what a Purger keeps beyond the duplicate window.
func (p *Purger) SetMargin(d time.Duration) { p.margin = d }

// ErrDisconnected ends an attempt whose connection was lost.
var ErrDisconnected = errDisconnected

// Judge is what is done about a failed attempt, and what the submitter hears.
func Judge(err error) (string, error) {
	v, _, answer := judge(err)
	return [...]string{"give up", "again", "unknown", "unreached", "repeated"}[v], answer
}

// DrainAfter is how long a lane's publishers are told to wait for need bytes,
// after observations of a lane whose messages have 100 bytes each: seconds
// since the first, and the first sequence.
func DrainAfter(need int, seen ...[2]int) time.Duration {
	var d drain
	begin := time.Unix(1_700_000_000, 0)
	now := begin
	for _, s := range seen {
		now = begin.Add(time.Duration(s[0]) * time.Second)
		d.observe(&Lane{First: uint64(s[1]), Messages: 10, Bytes: 1000}, now)
	}
	return d.after(need, now)
}
