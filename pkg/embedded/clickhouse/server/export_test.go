package server

import (
	"bufio"
	"io"
)

// Statement is what parseStatement finds, for tests.
type Statement struct {
	Text, Verb, Format, WithoutFormat string
	Many                              bool
	Insert                            *Insert
}

// Insert is the insert of a statement, for tests.
type Insert struct{ Head, Target, Columns, Format, Data string }

func ParseStatement(text string) Statement {
	s := parseStatement(text)
	out := Statement{Text: s.text, Verb: s.verb, Format: s.format, WithoutFormat: s.withoutFormat(), Many: s.many}
	if i := s.insert; i != nil {
		out.Insert = &Insert{Head: i.head, Target: i.target, Columns: i.columns, Format: i.format, Data: i.data}
	}
	return out
}

// ReadBlock reads one block of at most max bytes.
func ReadBlock(src io.Reader, max uint64) (columns, rows uint64, body []byte, err error) {
	b := blockReader{src: bufio.NewReader(src), max: max}
	read, err := b.read()
	return read.columns, read.rows, read.body, err
}

// NewFrames undoes ClickHouse's compression.
func NewFrames(src io.Reader) io.Reader { return &frames{src: bufio.NewReader(src)} }

// Hello is the hello of a client, for tests.
type Hello struct {
	Client                   string
	Revision                 int
	Database, User, Password string
}

func ReadHello(src *bufio.Reader) (Hello, error) {
	h, err := wire{src}.hello()
	return Hello{h.client, h.revision, h.database, h.user, h.password}, err
}

// Query is a query of a client, for tests.
type Query struct {
	ID, Body   string
	Settings   [][2]string
	Compressed bool
}

func ReadQuery(src *bufio.Reader, revision int) (Query, error) {
	q, err := wire{src}.query(revision)
	out := Query{ID: q.id, Body: q.body, Compressed: q.compressed}
	for _, s := range q.settings {
		out.Settings = append(out.Settings, [2]string{s.name, s.value})
	}
	return out, err
}

func Statuses() map[int]string { return statuses }

const Revision = revision

// LeavesDatabase says which name in a text leaves the database, or "".
func LeavesDatabase(text string) string {
	what, _ := leavesDatabase(text)
	return what
}

// Leaves are the names that do.
func Leaves() map[string]bool { return leaves }

// PlainRevision is the last one in which columns carry no byte of their own.
const PlainRevision = 54453
