package auth

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"sluice/pkg/flow"
)

// maxFile bounds a token file or key set.
const maxFile = 8 << 20

// entry is a token in force.
type entry struct {
	digest   [sha256.Size]byte
	identity flow.Caller
	expires  time.Time // zero: never
}

// table is the content of one token file. It is never changed once made.
type table struct {
	salt    [sha256.Size]byte
	entries map[[sha256.Size]byte]entry // by salted digest

	subjects map[string]bool
}

// slot is the key of a digest. The salt is secret and new in every table, so the time of a
// lookup discloses nothing about stored digests.
func (t *table) slot(digest [sha256.Size]byte) [sha256.Size]byte {
	var b [2 * sha256.Size]byte
	copy(b[:], t.salt[:])
	copy(b[sha256.Size:], digest[:])
	return sha256.Sum256(b[:])
}

// find finds nothing in a nil table.
func (t *table) find(digest [sha256.Size]byte) (entry, bool) {
	if t == nil {
		return entry{}, false
	}
	e, ok := t.entries[t.slot(digest)]
	return e, ok && subtle.ConstantTimeCompare(e.digest[:], digest[:]) == 1
}

// line is an Entry in the file.
type line struct {
	Subject string           `yaml:"subject"`
	Source  string           `yaml:"source"`
	SHA256  string           `yaml:"sha256"`
	Scopes  []flow.Scope     `yaml:"scopes"`
	Expires string           `yaml:"expires"` // not time.Time: YAML has times without a zone, too
	Tables  []string         `yaml:"tables"`
	Tenants []string         `yaml:"tenants"`
	Rate    float64          `yaml:"rate"`
	Exclude []flow.Exclusion `yaml:"exclude"`
}

// parseTable parses a token file, whose subjects must not begin with reserved, unless that
// is empty. An error names the entry, never its content.
func parseTable(content []byte, reserved string) (*table, error) {
	var list []line
	dec := yaml.NewDecoder(bytes.NewReader(content))
	dec.KnownFields(true)
	switch err := dec.Decode(&list); {
	case errors.Is(err, io.EOF):
		// An editor may have just truncated the file.
		return nil, errors.New("the file is empty; write [] for no tokens")
	case err != nil:
		return nil, errors.New("not a YAML list of {subject, source, sha256, scopes, tables, tenants, expires, rate, exclude}" + position(err))
	case mayBeCut(content):
		return nil, errors.New("the file may be truncated: end it with a line of three dots, or write each token on one line")
	}
	t := &table{entries: make(map[[sha256.Size]byte]entry, len(list)), subjects: make(map[string]bool, len(list))}
	_, _ = rand.Read(t.salt[:])
	for i, item := range list {
		e, err := item.parse()
		if err == nil && reserved != "" && strings.HasPrefix(e.identity.Subject, reserved) {
			err = fmt.Errorf("its subject begins with %q, which is reserved for JWTs", reserved)
		}
		if err != nil {
			return nil, fmt.Errorf("token %d of the file: %w", i+1, err)
		}
		slot := t.slot(e.digest)
		if _, twice := t.entries[slot]; twice {
			return nil, fmt.Errorf("token %d of the file: its sha256 is repeated", i+1)
		}
		t.entries[slot] = e
		t.subjects[e.identity.Subject] = true
	}
	return t, nil
}

// mayBeCut reports whether the file could be truncated: a token of several lines may grant
// more without its last ones. One in braces is whole or invalid YAML.
func mayBeCut(content []byte) bool {
	if bytes.HasSuffix(bytes.TrimSpace(content), []byte("\n...")) {
		return false
	}
	var document yaml.Node
	if yaml.Unmarshal(content, &document) != nil || len(document.Content) == 0 {
		return true
	}
	return slices.ContainsFunc(document.Content[0].Content, func(token *yaml.Node) bool { return token.Style&yaml.FlowStyle == 0 })
}

// position is the line of a YAML error, without the values that the library quotes: they
// may be a pasted token.
func position(err error) string {
	if line := regexp.MustCompile(`\bline [0-9]+`).FindString(err.Error()); line != "" {
		return ", " + line
	}
	return ""
}

func (e line) parse() (entry, error) {
	digest, err := hex.DecodeString(e.SHA256)
	switch {
	case err != nil || len(digest) != sha256.Size:
		return entry{}, errors.New("sha256 is not 64 hexadecimal digits")
	case !validName(e.Subject):
		return entry{}, fmt.Errorf("subject is not %s", aName)
	case e.Source != "" && !validName(e.Source):
		return entry{}, fmt.Errorf("source is not %s", aName)
	case len(e.Scopes) == 0:
		return entry{}, errors.New("it has no scopes")
	case !(e.Rate >= 0): // NaN is refused too
		return entry{}, errors.New("rate is negative")
	}
	for what, names := range map[string][]string{"tables": e.Tables, "tenants": e.Tenants} {
		if names != nil && len(names) == 0 {
			return entry{}, fmt.Errorf("%s is empty: leave it out, and all are allowed", what)
		}
		if err := checkNames(names); err != nil {
			return entry{}, fmt.Errorf("%s: %w", what, err)
		}
	}
	if len(e.Exclude) > maxExclusions {
		return entry{}, fmt.Errorf("exclude has %d rules, at most %d", len(e.Exclude), maxExclusions)
	}
	if slices.Contains(e.Exclude, flow.Exclusion{}) {
		return entry{}, errors.New("a rule of exclude names nothing: give it a pattern for valueType, intent, bpmnProcessId, or variable")
	}
	for _, s := range e.Scopes {
		if !slices.Contains(flow.Scopes(), s) {
			return entry{}, fmt.Errorf("a scope is not one of %v", flow.Scopes())
		}
	}
	var expires time.Time
	if e.Expires != "" {
		if expires, err = time.Parse(time.RFC3339, e.Expires); err != nil {
			return entry{}, errors.New("expires is not a time such as 2027-01-31T12:00:00Z")
		}
	}
	return entry{
		digest:   [sha256.Size]byte(digest),
		identity: flow.Caller{Subject: e.Subject, Source: cmp.Or(e.Source, e.Subject), Scopes: e.Scopes, Tables: e.Tables, Tenants: e.Tenants, Rate: e.Rate, Exclude: e.Exclude},
		expires:  expires,
	}, nil
}

// maxName bounds subjects and sources, which are part of NATS subjects, keys, and headers.
const maxName = 256

// aName describes validName in errors.
const aName = "1 to 256 bytes of UTF-8 without control characters or outer spaces"

func validName(name string) bool {
	return name != "" && len(name) <= maxName && utf8.ValidString(name) &&
		!strings.ContainsFunc(name, unicode.IsControl) && strings.TrimSpace(name) == name
}

// maxNames bounds the tables, and the tenants, of one token.
const maxNames = 256

// maxExclusions bounds the rules of one token: each is matched with every record.
const maxExclusions = 64

// checkNames checks the tables or tenants of a token. Its error shows none of them.
func checkNames(names []string) error {
	if len(names) > maxNames {
		return fmt.Errorf("%d names, at most %d", len(names), maxNames)
	}
	if slices.ContainsFunc(names, func(name string) bool { return !validName(name) }) {
		return fmt.Errorf("a name is not %s", aName)
	}
	return nil
}

// file follows a file on disk.
type file struct {
	path string
	seen os.FileInfo // when last read
}

// changed reads the file if it changed since the last read, else returns nil content.
func (f *file) changed() ([]byte, error) {
	info, err := os.Stat(f.path)
	if err != nil {
		f.seen = nil // read it again once it is back, even unchanged
		return nil, err
	}
	// SameFile detects a file renamed into place, as configuration managers do, even
	// with equal size and time.
	if f.seen != nil && os.SameFile(f.seen, info) && f.seen.ModTime().Equal(info.ModTime()) && f.seen.Size() == info.Size() {
		return nil, nil
	}
	content, err := readFile(f.path)
	if err != nil {
		return nil, err
	}
	f.seen = info
	return content, nil
}

func readFile(path string) ([]byte, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	content, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err == nil && len(content) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return content, err
}
