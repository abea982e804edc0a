package console

import (
	"context"
	"time"

	"sluice/pkg/flow"
)

// Place marks the rejected members in a body. It returns the marked text and the
// members' paths.
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

// Asked runs the queries behind the pages of processes, for tests that compare the
// results with the truth.
type Asked struct {
	S   *Server
	Who *session
}

// Ask queries a database with a token of these tenants; nil: all.
func Ask(db Warehouse, tenants []string) Asked {
	return Asked{&Server{db: db}, &session{identity: flow.Caller{Tenants: tenants}}}
}

func Between(from, to time.Time) window { return window{Name: "24h", From: from, To: to} }

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

func (a Asked) Heat(ctx context.Context, source, process string, w window) ([]heatRow, error) {
	p := a.S.heat(ctx, a.Who, chosen{Source: source, Process: process, Window: w})
	return p.Rows, p.Err
}

// Follows is the graph shown for a process without a diagram.
func (a Asked) Follows(ctx context.Context, source, process string, w window) ([]followRow, error) {
	p := a.S.follows(ctx, a.Who, chosen{Source: source, Process: process, Window: w})
	return p.Rows, p.Err
}

func OpenWorkSQL(quiet time.Duration, limit int64) string {
	return openWorkSQL(time.Now(), quiet, limit)
}
