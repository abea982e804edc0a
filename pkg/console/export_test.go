package console

import (
	"context"

	"sluice/pkg/flow"
)

// Scoped is the condition of a session of such a token.
func Scoped(who flow.Caller, column string) (string, []any) {
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

// Histogram is what programs that show such metrics say of one, as a quantile.
func Histogram(programs []Program, name string, q float64) (seconds float64, ok bool) {
	var all reports
	for _, p := range programs {
		all = append(all, p.ask(context.Background()))
	}
	return all.histogram(name, nil).quantile(q)
}
