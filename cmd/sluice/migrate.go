package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/run"
	"sluice/pkg/warehouse"
)

type migrate struct {
	run.Operator
	run.ClickHouse
}

func (c *migrate) Run(ctx context.Context, log *slog.Logger) error {
	cfg, err := c.Operator.Warehouse(c.ClickHouse)
	if err != nil {
		return err
	}
	db, err := warehouse.Open(cfg, log, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.Migrate(ctx); err != nil {
		return err
	}
	if err := db.Check(ctx); err != nil {
		return err
	}
	fmt.Println("the schema is up to date")
	return nil
}
