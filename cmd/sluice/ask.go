package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"sluice/cmd/internal/ask"
	"sluice/cmd/internal/statement"
)

type askCmd struct {
	Question string   `arg:"" optional:"" help:"Name of a question; lists all of them when omitted."`
	Process  *string  `help:"BPMN process id; all processes when omitted."`
	From     moment   `help:"Start of the time range, inclusive: an age such as 90m or 7d, a day such as 2026-01-31, or a time such as 2026-01-31T12:00:00Z; 7d when omitted."`
	To       moment   `help:"End of the time range, exclusive; now when omitted."`
	Tenant   *string  `help:"Tenant; all tenants when omitted."`
	Source   *string  `help:"Source, for questions about one instance."`
	Set      []string `sep:"none" placeholder:"NAME=VALUE" help:"Another parameter of the question; repeat for more."`
	Format   string   `placeholder:"FORMAT" enum:"table,csv,json,md" default:"table" help:"table, csv, json, or md (Markdown)."`
	SQL      bool     `name:"sql" help:"Print the statement with these values instead of running it."`
	reading
}

// Run queries as the user analyst.
func (c *askCmd) Run(ctx context.Context, _ *slog.Logger) error {
	values, err := c.values(ctx)
	if err != nil {
		return err
	}
	address, err := c.as(c.Operator.Analyst)
	if err != nil {
		return err
	}
	return ask.Run(ctx, ask.Config{
		ClickHouse: statement.Server(address), Question: c.Question, Values: values, Now: time.Now(), Format: c.Format, SQL: c.SQL, To: os.Stdout,
	})
}

func (c *askCmd) values(ctx context.Context) (map[string]string, error) {
	values := map[string]string{}
	for name, value := range map[string]*string{"process": c.Process, "tenant": c.Tenant, "source": c.Source} {
		if value != nil {
			values[name] = *value
		}
	}
	from, to, err := between(ctx, c.From, c.To)
	if err != nil {
		return nil, err
	}
	for name, at := range map[string]time.Time{"from": from, "to": to} {
		if !at.IsZero() {
			values[name] = at.UTC().Format("2006-01-02T15:04:05.000Z")
		}
	}
	for _, set := range c.Set {
		name, value, is := strings.Cut(set, "=")
		if _, twice := values[name]; !is || twice {
			return nil, fmt.Errorf("--set %s: give each parameter once, as name=value", set)
		}
		values[name] = value
	}
	return values, nil
}
