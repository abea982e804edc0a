package console

import (
	"context"
	"time"

	"sluice/pkg/flow"
)

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

// Asked is what the pages of processes, instances and records are made of, for
// tests that compare it with the truth.
type Asked struct {
	S   *Server
	Who *session
}

// Ask asks a database, as a token of these tenants; nil are all.
func Ask(db Warehouse, tenants []string) Asked {
	return Asked{&Server{db: db}, &session{identity: flow.Caller{Tenants: tenants}}}
}

// Between is a window.
func Between(from, to time.Time) window { return window{Name: "24h", From: from, To: to} }

// The rows that pages show.
type (
	ProcessRow = processRow
	HeatRow    = heatRow
	PlaceRow   = placeRow
	VersionRow = versionRow
)

func (a Asked) Processes(ctx context.Context, w window) ([]processRow, error) {
	p := a.S.processList(ctx, a.Who, w, nil)
	return p.Rows, p.Err
}

func (a Asked) Process(ctx context.Context, source, process string, version int64, w window) *processPage {
	return a.S.processData(ctx, a.Who, chosen{Source: source, Process: process, Version: version, Window: w})
}

// Heat is what has happened at elements.
func (a Asked) Heat(ctx context.Context, source, process string, w window) ([]heatRow, error) {
	p := a.S.heat(ctx, a.Who, chosen{Source: source, Process: process, Window: w})
	return p.Rows, p.Err
}

// Follows is the graph that is shown of a process without a diagram.
func (a Asked) Follows(ctx context.Context, source, process string, w window) ([]followRow, error) {
	p := a.S.follows(ctx, a.Who, chosen{Source: source, Process: process, Window: w})
	return p.Rows, p.Err
}

// OpenWorkSQL counts open work, the largest of each kind.
func OpenWorkSQL(quiet time.Duration, most int64) string {
	return openWorkSQL(time.Now(), quiet, most)
}
