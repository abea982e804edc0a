package ask

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"sluice/cmd/internal/statement"
)

func (a answer) print(format string, to io.Writer) error {
	switch format {
	case "table":
		return a.table(to)
	case "csv":
		return a.csv(to)
	case "json":
		return a.json(to)
	case "md":
		return a.markdown(to)
	}
	return fmt.Errorf("unknown format %s: use table, csv, json, or md", format)
}

// table aligns columns, numbers to the right, and escapes control characters.
func (a answer) table(to io.Writer) error {
	widths := make([]int, len(a.columns))
	var rows [][]string
	for _, texts := range append([][]string{a.names()}, a.texts(visible)...) {
		for i, text := range texts {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
		rows = append(rows, texts)
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, text := range row {
			room := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			if a.columns[i].number {
				line.WriteString(room + text + "  ")
			} else {
				line.WriteString(text + room + "  ")
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(to, b.String())
	return err
}

// csv quotes texts that a spreadsheet would run as a formula.
func (a answer) csv(to io.Writer) error {
	out := csv.NewWriter(to)
	if err := out.Write(a.names()); err != nil {
		return err
	}
	for _, row := range a.rows {
		line := make([]string, len(row))
		for i, c := range row {
			if line[i] = c.text; !a.columns[i].number {
				line[i] = statement.Cell(c.text)
			}
		}
		if err := out.Write(line); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// json is an array of objects, one per line.
func (a answer) json(to io.Writer) error {
	var b strings.Builder
	b.WriteString("[")
	for i, row := range a.rows {
		b.WriteString([]string{"\n{", ",\n{"}[min(i, 1)])
		for j, c := range row {
			value := c.json
			if value == nil {
				value = quoted(c.text)
			}
			b.WriteString([]string{"", ","}[min(j, 1)])
			b.Write(quoted(a.columns[j].name))
			b.WriteString(":")
			b.Write(value)
		}
		b.WriteString("}")
	}
	b.WriteString("\n]\n")
	_, err := io.WriteString(to, b.String())
	return err
}

func quoted(text string) []byte {
	line, _ := json.Marshal(text) // a string: never fails
	return line
}

func (a answer) markdown(to io.Writer) error {
	var b strings.Builder
	line := func(texts []string) { b.WriteString("| " + strings.Join(texts, " | ") + " |\n") }
	line(a.names())
	for _, c := range a.columns {
		b.WriteString(map[bool]string{false: "|---", true: "|--:"}[c.number])
	}
	b.WriteString("|\n")
	escape := strings.NewReplacer(`\`, `\\`, `|`, `\|`, `<`, `&lt;`, `&`, `&amp;`)
	for _, texts := range a.texts(func(text string) string { return escape.Replace(visible(text)) }) {
		line(texts)
	}
	_, err := io.WriteString(to, b.String())
	return err
}

func (a answer) names() []string {
	names := make([]string, len(a.columns))
	for i, c := range a.columns {
		names[i] = c.name
	}
	return names
}

func (a answer) texts(as func(string) string) [][]string {
	rows := make([][]string, len(a.rows))
	for i, row := range a.rows {
		rows[i] = make([]string, len(row))
		for j, c := range row {
			rows[i][j] = as(c.text)
		}
	}
	return rows
}

// visible escapes line breaks, tabs, and control characters.
func visible(text string) string {
	if strings.IndexFunc(text, unicode.IsControl) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsControl(r):
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
