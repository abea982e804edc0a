package warehouse

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

//go:embed questions.sql
var questionsFile string

// Question is something that analysts ask, with the statement that answers it.
type Question struct {
	Name       string // such as durations
	Asks       string // in words
	Means      string // what the answer says, and what it leaves out; may be empty
	Do         string // of Checks: what to do about what is found
	SQL        string // one SELECT over the views of the database flow, without a semicolon
	Parameters []Parameter
	Reads      []string // views and tables, without the database
}

// Parameter is what a statement has as {name:Type}.
type Parameter struct {
	Name    string
	Type    string // of ClickHouse
	Means   string
	Example string // as ClickHouse takes a value by HTTP
	Default string // what to ask with when no value is given; empty: there is none
}

var (
	parameterLine = regexp.MustCompile(`^parameter (\w+) = (.*?)( by default)?: (.+)$`)
	exampleLine   = regexp.MustCompile(`^example (\w+)=(.*)$`)
	placeholder   = regexp.MustCompile(`\{(\w+):([^}]+)\}`)
	readsFrom     = regexp.MustCompile(`\bflow\.(\w+)`)
)

// Questions are all of questions.sql, in its order.
func Questions() ([]Question, error) { return parseQuestions(questionsFile) }

func parseQuestions(file string) ([]Question, error) {
	head, rest, _ := strings.Cut(file, "\n-- question ")
	parameters := map[string]Parameter{}
	for line := range strings.Lines(head) {
		if m := parameterLine.FindStringSubmatch(comment(line)); m != nil {
			p := Parameter{Name: m[1], Example: m[2], Means: m[4]}
			if m[3] != "" {
				p.Default = p.Example
			}
			parameters[p.Name] = p
		}
	}
	var all []Question
	for text := range strings.SplitSeq(rest, "\n-- question ") {
		q, err := parseQuestion(text, parameters)
		if err != nil {
			return nil, err
		}
		all = append(all, q)
	}
	return all, nil
}

// parseQuestion reads what stands behind "-- question ".
func parseQuestion(text string, parameters map[string]Parameter) (Question, error) {
	title, text, _ := strings.Cut(text, "\n")
	name, asks, named := strings.Cut(title, ": ")
	if !named {
		return Question{}, fmt.Errorf("questions: %q is no question with a name", title)
	}
	q := Question{Name: name, Asks: asks}
	examples := map[string]string{}
	for strings.HasPrefix(text, "--") {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		if m := exampleLine.FindStringSubmatch(comment(line)); m != nil {
			examples[m[1]] = m[2]
			continue
		}
		if do, ok := strings.CutPrefix(comment(line), "do: "); ok {
			q.Do = do
			continue
		}
		q.Means = strings.TrimSpace(q.Means + " " + comment(line))
	}
	statement, closed := strings.CutSuffix(strings.TrimSpace(text), ";")
	if !closed || strings.Contains(statement, ";") {
		return Question{}, fmt.Errorf("questions: %s is not one statement that ends with a semicolon", name)
	}
	q.SQL = statement
	for _, m := range placeholder.FindAllStringSubmatch(statement, -1) {
		if slices.ContainsFunc(q.Parameters, func(p Parameter) bool { return p.Name == m[1] }) {
			continue
		}
		p, known := parameters[m[1]]
		if !known {
			return Question{}, fmt.Errorf("questions: %s has the parameter %s, which the head does not explain", name, m[1])
		}
		p.Type = m[2]
		if example, ok := examples[p.Name]; ok {
			p.Example = example
		}
		q.Parameters = append(q.Parameters, p)
	}
	for _, m := range readsFrom.FindAllStringSubmatch(statement, -1) {
		if !slices.Contains(q.Reads, m[1]) {
			q.Reads = append(q.Reads, m[1])
		}
	}
	return q, nil
}

// With is the statement with a value in the place of each parameter: its
// example where values has none. It is for programs that ask by text alone.
func (q Question) With(values map[string]string) string {
	literal := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	return placeholder.ReplaceAllStringFunc(q.SQL, func(hole string) string {
		name := placeholder.FindStringSubmatch(hole)[1]
		i := slices.IndexFunc(q.Parameters, func(p Parameter) bool { return p.Name == name })
		value, given := values[name]
		if !given {
			value = q.Parameters[i].Example
		}
		value = "'" + literal.Replace(value) + "'"
		if kind := q.Parameters[i].Type; kind != "String" {
			return "CAST(" + value + ", '" + literal.Replace(kind) + "')"
		}
		return value
	})
}

// comment is what a line of comment says.
func comment(line string) string {
	return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "--"))
}
