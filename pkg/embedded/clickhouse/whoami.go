package clickhouse

import "strings"

// names of the function that tells the user.
var whoFunctions = nameSet("currentuser current_user user authenticateduser")

// named is a statement in which the user's name stands in place of currentUser():
// to the engine everybody is its user default. An alias keeps the name of the
// column. What is stored, the definition of a view, is left as it is.
func (s *session) named(text string) string {
	if other, ok := s.served(text); ok {
		return other
	}
	name := s.user.Name
	if name == "default" || !strings.Contains(strings.ToLower(text), "user") {
		return text
	}
	l := &lexer{text: text}
	if first := peek(l); !isWord(text, first, "SELECT") && !isWord(text, first, "WITH") && !isMark(text, first, '(') {
		return text
	}
	var out strings.Builder
	var before, last token // the two before t
	from, open := 0, token{}
	for t := l.next(); t.kind != tokenEnd; before, last, t = last, t, l.next() {
		call := isMark(text, last, '(') && open == last && isMark(text, t, ')')
		if call {
			written := text[before.start:t.end]
			out.WriteString(text[from:before.start] + "(" + quoteText(name) + " AS " + quoteName(written) + ")")
			from = t.end
		}
		if isMark(text, t, '(') && last.kind == tokenWord && !isMark(text, before, '.') && whoFunctions[strings.ToLower(text[last.start:last.end])] {
			open = t
		}
	}
	return out.String() + text[from:]
}
