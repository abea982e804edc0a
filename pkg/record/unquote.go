package record

import (
	"unicode/utf16"
	"unicode/utf8"
)

// unquote appends the text that the inside of a JSON string stands for. The
// string was read by a scanner before. A surrogate without its other half
// becomes U+FFFD, as in encoding/json.
func unquote(dst, s []byte) []byte {
	for i := 0; i < len(s); {
		c := s[i]
		if c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		c = s[i+1]
		i += 2
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			var r rune
			r, i = unicodeEscape(s, i)
			dst = utf8.AppendRune(dst, r)
			continue
		}
		dst = append(dst, c)
	}
	return dst
}

// unicodeEscape decodes the hexadecimal digits at i, and the second half of a
// surrogate pair if it follows.
func unicodeEscape(s []byte, i int) (rune, int) {
	r, _ := hex4(s[i:])
	i += 4
	if !utf16.IsSurrogate(r) {
		return r, i
	}
	if i+6 <= len(s) && s[i] == '\\' && s[i+1] == 'u' {
		low, _ := hex4(s[i+2:])
		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			return pair, i + 6
		}
	}
	return utf8.RuneError, i
}

func hex4(s []byte) (r rune, ok bool) {
	if len(s) < 4 {
		return 0, false
	}
	for _, c := range s[:4] {
		switch {
		case c-'0' < 10:
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
