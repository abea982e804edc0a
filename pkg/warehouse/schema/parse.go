package schema

import (
	"fmt"
	"regexp"
	"strings"
)

// A file lists tables and views. A paragraph of comment describes the object below it:
//
//	-- Incidents, one row each.
//	TABLE incidents
//	source process_instance_key                            from the file columns
//	key key(Int64) -- of the record                        part of the sorting key
//	created_at min(Time?) = if(…, at, NULL) -- CREATED     minimum over the records of FEED
//	FEED WITH … FROM flow.records AS r WHERE …
//
//	-- One row for each incident.
//	VIEW v_incidents
//	source process_instance_key created_at                 from the file columns, or the table above
//	open UInt8 = state < 2 -- 1 until it is resolved
//	FROM flow.incidents FINAL
//
// Text is String, in tables with a dictionary; Time is DateTime64(3, 'UTC'); T? is Nullable(T). A column of a view
// takes its missing type, expression, and meaning from the file columns, else from the table above it. An EVERYWHERE
// table has its rows on every server.
type object struct {
	verb, name, about string
	columns           []column
	clauses           map[string]string // by keyword
}

// column is a column of a table or view. kind is its type; merge combines two of its values: key, max, min, set or sum.
type column struct{ name, merge, kind, codec, expr, meaning string }

var (
	keywords = []string{"INDEX", "SHARD BY", "ENGINE", "PARTITION BY", "PRIMARY KEY", "ORDER BY", "TTL", "SETTINGS", "FEED", "WITH", "FROM", "AS"}
	shape    = regexp.MustCompile(`(?s)^("[^"]+"|\w+)(?: (?:(key|max|min|set|sum)\((.+?)\)|(.+?)))??(?: CODEC\((.+?)\))?(?: = (.+?))?(?: -- (.+))?$`)
	names    = regexp.MustCompile(`^[a-z_ ]+$`)
)

// parse reads the objects of a file. shared are the columns of the file columns.
func parse(text string, shared map[string]column) ([]*object, error) {
	var all []*object
	var about []string
	var lines []string // of the object: continued lines are joined
	of := map[string]column{}
	end := func() error {
		if len(all) == 0 {
			return nil
		}
		o := all[len(all)-1]
		defer func() { lines = nil }()
		return o.read(lines, shared, of)
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		verb, name, _ := strings.Cut(line, " ")
		switch comment, is := strings.CutPrefix(line, "--"); {
		case strings.HasPrefix(line, "---"): // not part of the description
		case is:
			about = append(about, strings.TrimSpace(comment))
		case verb == "TABLE" || verb == "EVERYWHERE" || verb == "VIEW":
			if err := end(); err != nil {
				return nil, err
			}
			paragraphs := strings.ReplaceAll(strings.Join(about, " "), "  ", "\n\n")
			all, about = append(all, &object{verb: verb, name: name, about: paragraphs, clauses: map[string]string{}}), nil
		case line == "":
		case strings.HasPrefix(line, " ") || line[0] == ')' || line[0] == '(':
			lines[len(lines)-1] += "\n" + line
		default:
			lines = append(lines, line)
		}
	}
	return all, end()
}

// read parses the lines of an object. table are the columns of the tables above it.
func (o *object) read(lines []string, shared, table map[string]column) error {
lines:
	for _, line := range lines {
		for _, keyword := range keywords {
			if rest, is := strings.CutPrefix(line, keyword); is && strings.ContainsAny(rest[:1], " \n") {
				o.clauses[keyword] = strings.TrimSpace(o.clauses[keyword] + "\n" + rest)
				continue lines
			}
		}
		if names.MatchString(line) {
			for _, name := range strings.Fields(line) {
				o.columns = append(o.columns, column{name: name})
			}
			continue
		}
		c, err := parseColumn(line)
		if err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
		o.columns = append(o.columns, c)
	}
	for i := range o.columns {
		c := &o.columns[i]
		known := []column{shared[c.name]}
		if o.verb == "VIEW" {
			known = append(known, column{kind: table[c.name].kind, expr: c.name, meaning: table[c.name].meaning})
		}
		for _, k := range known {
			if c.kind == "" {
				c.kind, c.merge, c.codec = k.kind, k.merge, k.codec
			}
			if o.verb == "VIEW" && c.expr == "" {
				c.expr = k.expr
			}
			if c.meaning == "" {
				c.meaning = k.meaning
			}
		}
		if c.kind == "" || c.meaning == "" {
			return fmt.Errorf("%s.%s has no type or no meaning: add it here, in the table above, or in the file columns", o.name, c.name)
		}
		if o.verb == "VIEW" {
			c.kind = expand(c.kind, "String")
			continue
		}
		if c.kind = expand(c.kind, "LowCardinality(String)"); c.merge == "set" {
			c.kind = "Array(" + c.kind + ")"
		}
		if o.clauses["FEED"] == "" {
			c.merge = "" // its engine does not merge values
		}
		table[c.name] = *c
	}
	return nil
}

func parseColumn(line string) (column, error) {
	m := shape.FindStringSubmatch(line)
	if m == nil {
		return column{}, fmt.Errorf("invalid column, want NAME TYPE = EXPRESSION -- MEANING: %s", line)
	}
	return column{name: m[1], merge: m[2], kind: m[3] + m[4], codec: m[5], expr: m[6], meaning: m[7]}, nil
}

// expand returns the ClickHouse type.
func expand(kind, text string) string {
	kind, nullable := strings.CutSuffix(kind, "?")
	switch kind {
	case "Text", "LowCardinality(String)":
		kind = text
	case "Time":
		kind = "DateTime64(3, 'UTC')"
	}
	if nullable {
		kind = "Nullable(" + kind + ")"
	}
	return kind
}

// keys are the columns of the sorting key of an aggregate table.
func (o *object) keys() []string {
	var all []string
	for _, c := range o.columns {
		if c.merge == "key" {
			all = append(all, c.name)
		}
	}
	return all
}
