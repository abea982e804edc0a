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

// Question is a question of analysts with the statement that answers it.
type Question struct {
	Name       string // such as durations
	Asks       string // in words
	Means      string // meaning and limits of the answer; may be empty
	Do         string // of Checks: the remedy
	SQL        string // one SELECT over the views of the database flow, without a semicolon
	Parameters []Parameter
	Reads      []string // views and tables, without the database
}

// Parameter is a {name:Type} of a statement.
type Parameter struct {
	Name    string
	Type    string // of ClickHouse
	Means   string
	Example string // in the format of ClickHouse's HTTP parameters
	Default string // value if none is given

	Optional bool // without a value it is empty, which does not filter
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
			p := Parameter{Name: m[1], Example: m[2], Means: m[4], Optional: m[2] == ""}
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

// parseQuestion parses the text after "-- question ".
func parseQuestion(text string, parameters map[string]Parameter) (Question, error) {
	title, text, _ := strings.Cut(text, "\n")
	name, asks, named := strings.Cut(title, ": ")
	if !named {
		return Question{}, fmt.Errorf("questions: %q is not a question with a name", title)
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

// With is the statement with literals in place of parameters: the example if values has none. It is for
// programs that cannot pass parameters.
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

// comment is the text of a comment line.
func comment(line string) string {
	return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "--"))
}
