package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sluice/pkg/flow"
)

// Entry is one token of the token file.
type Entry struct {
	Subject string           // the current user
	Source  string           // the engine whose records it posts; empty: the subject
	SHA256  string           // hex of the SHA-256 of the token
	Scopes  []flow.Scope     // at least one
	Expires time.Time        // zero: never
	Tables  []string         // dataset tables it may touch; empty: all
	Tenants []string         // tenants whose records it may post; empty: all
	Rate    float64          // requests per second; 0: the api's default
	Exclude []flow.Exclusion // records to answer OK and not keep
}

// tokenPrefix marks tokens of Sluice for secret scanners.
const tokenPrefix = "sluice_"

// NewToken makes a token of 256 random bits. It is stored nowhere: print it once and keep
// its Digest.
func NewToken() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b[:])
}

// Digest is the hex of the token's SHA-256, as in the token file.
func Digest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// Line is the entry as one line of a token file.
func (e Entry) Line() string {
	scopes := make([]string, len(e.Scopes))
	for i, s := range e.Scopes {
		scopes[i] = string(s)
	}
	source := ""
	if e.Source != "" {
		source = ", source: " + strconv.Quote(e.Source)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "- {subject: %s%s, sha256: %q, scopes: %s", strconv.Quote(e.Subject), source, e.SHA256, quoted(scopes))
	if len(e.Tables) > 0 {
		fmt.Fprintf(&b, ", tables: %s", quoted(e.Tables))
	}
	if len(e.Tenants) > 0 {
		fmt.Fprintf(&b, ", tenants: %s", quoted(e.Tenants))
	}
	if !e.Expires.IsZero() {
		fmt.Fprintf(&b, ", expires: %q", e.Expires.UTC().Format(time.RFC3339))
	}
	if e.Rate > 0 {
		fmt.Fprintf(&b, ", rate: %g", e.Rate)
	}
	if len(e.Exclude) > 0 {
		rules := make([]string, len(e.Exclude))
		for i, rule := range e.Exclude {
			rules[i] = rule.String()
		}
		fmt.Fprintf(&b, ", exclude: [%s]", strings.Join(rules, ", "))
	}
	b.WriteString("}")
	return b.String()
}

// quoted is a list of texts in YAML.
func quoted(list []string) string {
	texts := make([]string, len(list))
	for i, text := range list {
		texts[i] = strconv.Quote(text)
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// Check fails if a token file would refuse the entry.
func (e Entry) Check() error {
	_, err := parseTable([]byte(e.Line()), "")
	return err
}
