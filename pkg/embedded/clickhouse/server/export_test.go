package server

import (
	"bufio"
	"io"
)

// Statement is the result of parseStatement.
type Statement struct {
	Text, Verb, Format, WithoutFormat string
	Many                              bool
	Insert                            *Insert
}

// Insert is the insert of a statement.
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

// NewFrames decodes ClickHouse's compression.
func NewFrames(src io.Reader) io.Reader { return &frames{src: bufio.NewReader(src)} }

// Hello is a client's hello.
type Hello struct {
	Client                   string
	Revision                 int
	Database, User, Password string
}

func ReadHello(src *bufio.Reader) (Hello, error) {
	h, err := wire{src}.hello()
	return Hello{h.client, h.revision, h.database, h.user, h.password}, err
}

// Query is a client's query.
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

// LeavesDatabase returns the name in a text that leaves the database, or "".
func LeavesDatabase(text string) string {
	what, _ := leavesDatabase(text)
	return what
}

// Leaves are the names that leave the database.
func Leaves() map[string]bool { return leaves }

// PlainRevision is the last revision in which columns have no extra byte.
const PlainRevision = 54453
