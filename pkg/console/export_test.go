package console

import "sluice/pkg/record"

// Scoped is the condition of a session of such a token.
func Scoped(who record.Identity, column string) (string, []any) {
	return (&session{identity: who}).scoped(column)
}

// Place marks in a body what was refused: the text, with marks around it, and
// the places in words.
func Place(body []byte, reason string) (text string, places []string) {
	p := place(body, reason)
	for _, piece := range p.Pieces {
		if piece.Marked {
			piece.Text = ">>" + piece.Text + "<<"
		}
		text += piece.Text
	}
	return text, p.Places
}
