package api

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	mrand "math/rand/v2"
	"net/http"
	"strings"
)

// newRequestID makes a random UUID (RFC 9562, version 4). It names a request
// and protects nothing, so the fast generator will do.
func newRequestID() string {
	var b [16]byte
	binary.NativeEndian.PutUint64(b[:8], mrand.Uint64())
	binary.NativeEndian.PutUint64(b[8:], mrand.Uint64())
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	var text [36]byte
	hex.Encode(text[0:8], b[0:4])
	hex.Encode(text[9:13], b[4:6])
	hex.Encode(text[14:18], b[6:8])
	hex.Encode(text[19:23], b[8:10])
	hex.Encode(text[24:36], b[10:16])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}

// clientsID is what a client calls its request, to find it again in its own
// logs; empty when it says nothing that can be repeated.
func clientsID(h http.Header) string {
	values := h["X-Request-Id"]
	if len(values) != 1 || len(values[0]) > 128 {
		return ""
	}
	for _, c := range []byte(values[0]) {
		if c <= 0x20 || c > 0x7e {
			return ""
		}
	}
	return values[0]
}

// What a submission's id is made of. Ids of different kinds never meet.
const (
	idOfKey  = "key"  // the client's Idempotency-Key
	idOfBody = "body" // the hash of a body whose records all have ids
)

// submissionID is the id of a request within the duplicate window. Two subjects
// never share one: nobody can learn or block what another one posts.
func submissionID(kind, subject, key string) string {
	h := sha256.New()
	var size [8]byte
	for _, part := range []string{kind, subject, key} {
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		h.Write(size[:])
		h.Write([]byte(part))
	}
	var sum [sha256.Size]byte
	return hex.EncodeToString(h.Sum(sum[:0])[:16])
}

// randomID is the id of a request that cannot be told from another one like
// it, and so is never a repeat.
func randomID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: the process ends instead
	return hex.EncodeToString(b[:])
}

// idempotencyKey returns the Idempotency-Key of a request, empty when it has
// none. The key may be bare or, as the draft standard has it, in quotes.
func idempotencyKey(h http.Header) (string, error) {
	values := h["Idempotency-Key"]
	if len(values) == 0 {
		return "", nil
	}
	key := strings.Trim(values[0], " \t")
	if n := len(key); n >= 2 && key[0] == '"' && key[n-1] == '"' {
		key = key[1 : n-1]
	}
	if len(values) > 1 || key == "" || len(key) > 255 {
		return "", refuse(codeBadKey, "Idempotency-Key is sent once, with 1 to 255 characters")
	}
	for i := range len(key) {
		if key[i] < 0x20 || key[i] > 0x7e {
			return "", refuse(codeBadKey, "Idempotency-Key holds characters other than printable ASCII")
		}
	}
	return key, nil
}

// traceParent returns the W3C trace context of a request, empty when it has
// none that is well-formed.
func traceParent(h http.Header) string {
	values := h["Traceparent"]
	if len(values) != 1 || len(values[0]) != 55 {
		return ""
	}
	for i, c := range []byte(values[0]) {
		switch {
		case i == 2 || i == 35 || i == 52:
			if c != '-' {
				return ""
			}
		case c < '0' || c > 'f' || c > '9' && c < 'a':
			return ""
		}
	}
	return values[0]
}
