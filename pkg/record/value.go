package record

import (
	"encoding/binary"
	"math"
	"time"
)

// integer returns a JSON number as an integer, or the code of the reason why it is not one. It avoids floating point:
// keys beyond 2^53 are common.
func integer(text []byte) (n int64, code string) {
	sign, text := cutSign(text)
	var mantissa []byte // digits without the point
	exponent, i := 0, 0
	for ; i < len(text) && text[i]-'0' < 10; i++ {
	}
	mantissa = text[:i]
	if i < len(text) && text[i] == '.' {
		start := i + 1
		for i = start; i < len(text) && text[i]-'0' < 10; i++ {
		}
		exponent = start - i
		mantissa = append(append(make([]byte, 0, len(text)), mantissa...), text[start:i]...)
	}
	if i < len(text) {
		exponent += power(text[i+1:])
	}
	for len(mantissa) > 0 && mantissa[0] == '0' {
		mantissa = mantissa[1:]
	}
	for exponent < 0 && len(mantissa) > 0 {
		if mantissa[len(mantissa)-1] != '0' {
			return 0, CodeNotAnInteger
		}
		mantissa = mantissa[:len(mantissa)-1]
		exponent++
	}
	if len(mantissa) == 0 {
		return 0, ""
	}
	if len(mantissa)+exponent > 19 {
		return 0, CodeOutOfRange
	}
	return signed(sign, mantissa, exponent)
}

// power returns the exponent of a number, clamped to what the digits of any text could
// offset.
func power(text []byte) int {
	const enough = math.MaxInt32 * 2
	sign, text := cutSign(text)
	n := 0
	for _, c := range text {
		if n = 10*n + int(c-'0'); n > enough {
			n = enough
		}
	}
	return n * sign
}

func cutSign(text []byte) (int, []byte) {
	switch {
	case len(text) > 0 && text[0] == '-':
		return -1, text[1:]
	case len(text) > 0 && text[0] == '+':
		return 1, text[1:]
	}
	return 1, text
}

// signed returns sign * digits * 10^zeros; there are at most 19 digits with
// the zeros, which fits an uint64.
func signed(sign int, digits []byte, zeros int) (int64, string) {
	var n uint64
	for _, c := range digits {
		n = 10*n + uint64(c-'0')
	}
	for ; zeros > 0; zeros-- {
		n *= 10
	}
	switch {
	case sign < 0 && n <= -math.MinInt64:
		return -int64(n), ""
	case sign > 0 && n <= math.MaxInt64:
		return int64(n), ""
	}
	return 0, CodeOutOfRange
}

// small parses a number of kindInt: at most 18 digits.
func small(text []byte) int64 {
	sign, text := cutSign(text)
	var n uint64
	rest := text
	for ; len(rest) >= 8; rest = rest[8:] {
		n = n*100_000_000 + eight(binary.LittleEndian.Uint64(rest)-'0'*ones)
	}
	if len(rest) == len(text) {
		for _, c := range text {
			n = 10*n + uint64(c-'0')
		}
	} else if more := len(rest); more > 0 { // the last eight digits, less those already read
		last := binary.LittleEndian.Uint64(text[len(text)-8:]) - '0'*ones
		n = n*tens[more] + eight(last>>(64-8*more)<<(64-8*more))
	}
	return int64(n) * int64(sign)
}

var tens = [8]uint64{1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000}

// eight parses eight decimal digits, the first in the lowest byte, combining pairs in
// parallel.
func eight(digits uint64) uint64 {
	digits = digits*10 + digits>>8
	const pairs = 0x000000ff_000000ff
	return (digits&pairs*(100+1_000_000<<32) + digits>>16&pairs*(1+10_000<<32)) >> 32
}

// decimal returns the value of a string of 1 to 19 digits with an optional
// minus sign.
func decimal(text []byte) (n int64, code string) {
	sign := 1
	if len(text) > 0 && text[0] == '-' {
		sign, text = -1, text[1:]
	}
	if len(text) == 0 || len(text) > 19 || digits(text, 0) != len(text) {
		return 0, CodeNotAnInteger
	}
	return signed(sign, text, 0)
}

// A timestamp outside these bounds would create a partition of its own. It is stored as
// 0 and kept as sent in extra.
const (
	earliest = 946684800000  // 2000-01-01, in ms
	tooLate  = 4102444800000 // 2100-01-01
)

// plausible reports whether ms is a valid time of a record. No clock is read, so the result
// depends on the record alone.
func plausible(ms int64) bool { return earliest <= ms && ms < tooLate }

// isoTime parses an ISO 8601 date, with or without time of day, into ms since 1970.
// Without an offset it is UTC; digits beyond milliseconds are truncated.
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

// isoParser consumes text from the front; ok turns false at the first mismatch.
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
