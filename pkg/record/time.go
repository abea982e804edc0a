package record

import "time"

// A timestamp outside of these bounds is a mistake: it would choose a
// partition of its own. It is stored as 0 and kept as it was sent in extra.
const (
	earliest  = 946684800000                                 // 2000-01-01, in ms
	tolerance = int64(7 * 24 * time.Hour / time.Millisecond) // after the time of receipt
)

// plausible says whether ms can be the time of a record received at received.
func plausible(ms, received int64) bool {
	return ms >= earliest && ms <= received+tolerance
}

// isoTime reads an ISO 8601 date, alone or with a time of day, and returns ms
// since 1970. Without an offset it is taken as UTC; digits beyond milliseconds
// are cut off.
func isoTime(text []byte) (ms int64, ok bool) {
	p := isoParser{text: text, ok: true}
	year := p.number(4)
	p.byte('-')
	month := p.number(2)
	p.byte('-')
	day := p.number(2)
	var hour, minute, second, milli, offset int
	if p.ok && len(p.text) > 0 {
		p.byte('T', 't', ' ')
		hour = p.number(2)
		p.byte(':')
		minute = p.number(2)
		if p.accept(':') {
			second = p.number(2)
			if p.accept('.', ',') {
				milli = p.fraction()
			}
		}
		offset = p.offset()
	}
	if !p.ok || len(p.text) > 0 || month < 1 || month > 12 || day < 1 || day > daysIn(year, month) ||
		hour > 23 || minute > 59 || second > 59 {
		return 0, false
	}
	t := time.Date(year, time.Month(month), day, hour, minute-offset, second, 0, time.UTC)
	return t.UnixMilli() + int64(milli), true
}

func daysIn(year, month int) int {
	return time.Date(year, time.Month(month)+1, 0, 0, 0, 0, 0, time.UTC).Day()
}

// isoParser eats text from the front; ok turns false at the first mismatch.
type isoParser struct {
	text []byte
	ok   bool
}

func (p *isoParser) accept(any ...byte) bool {
	for _, c := range any {
		if p.ok && len(p.text) > 0 && p.text[0] == c {
			p.text = p.text[1:]
			return true
		}
	}
	return false
}

func (p *isoParser) byte(any ...byte) { p.ok = p.accept(any...) }

func (p *isoParser) number(width int) (n int) {
	if p.ok = p.ok && len(p.text) >= width; !p.ok {
		return 0
	}
	for _, c := range p.text[:width] {
		p.ok = p.ok && c-'0' < 10
		n = 10*n + int(c-'0')
	}
	p.text = p.text[width:]
	return n
}

// fraction reads the digits of a fraction of a second, as milliseconds.
func (p *isoParser) fraction() (milli int) {
	n := digits(p.text, 0)
	p.ok = p.ok && n > 0
	for i := range 3 {
		milli *= 10
		if i < n {
			milli += int(p.text[i] - '0')
		}
	}
	p.text = p.text[n:]
	return milli
}

// offset reads Z, ±hh, ±hhmm, ±hh:mm or nothing, in minutes.
func (p *isoParser) offset() int {
	if len(p.text) == 0 || p.accept('Z', 'z') {
		return 0
	}
	sign := 1
	if !p.accept('+') {
		p.byte('-')
		sign = -1
	}
	hours, minutes := p.number(2), 0
	if p.accept(':') || len(p.text) > 0 {
		minutes = p.number(2)
	}
	p.ok = p.ok && hours < 24 && minutes < 60
	return sign * (60*hours + minutes)
}
