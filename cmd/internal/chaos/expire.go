package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/cmd/internal/deployment"
	"sluice/cmd/internal/oracle"
)

// agedBy is the number of days by which stored data is aged, and agedKept the retention
// afterwards, in days.
const (
	agedBy   = 5
	agedKept = 2
)

// expire stops the ingesters, ages rows, counters and the lanes' totals by five days, and
// sets a retention of two days. The engine's clock cannot be stepped instead.
func expire(_ *rand.Rand, _ Config, d *deployment.Deployment) Fault {
	var alone []string
	for _, p := range d.Of(deployment.Ingester) {
		alone = append(alone, p.Name)
	}
	return Fault{Kind: "expire", Alone: alone, Inject: func(ctx context.Context, s *site) (func(), error) {
		for _, p := range s.Of(deployment.Ingester) { // they leave no claim open
			if err := p.Stop(); err != nil {
				s.journal.note("%v", err)
			}
		}
		return func() {
			for _, p := range s.Of(deployment.Ingester) {
				s.start(p)
			}
		}, s.age(ctx)
	}}
}

// recent matches rows that are not aged yet, so that a statement can be repeated.
const recent = " >= today() - 1"

func (s *site) age(ctx context.Context) error {
	shift := fmt.Sprintf("INSERT INTO flow.counts_1m SELECT * REPLACE (stored_day - %d AS stored_day) FROM flow.counts_1m WHERE stored_day%s AND (SELECT count() FROM flow.counts_1m WHERE NOT stored_day%[2]s) = 0", agedBy, recent)
	for _, sql := range []string{
		fmt.Sprintf("ALTER TABLE flow.records UPDATE stored_at = stored_at - INTERVAL %d DAY WHERE stored_at%s SETTINGS mutations_sync = 2", agedBy, recent),
		shift, "ALTER TABLE flow.counts_1m DELETE WHERE stored_day" + recent + " SETTINGS mutations_sync = 2",
		"OPTIMIZE TABLE flow.records FINAL", "OPTIMIZE TABLE flow.counts_1m FINAL", // parts of aged rows alone
	} {
		if err := s.insist(ctx, "age the records", func(ctx context.Context) error { return s.Exec(ctx, sql) }); err != nil {
			return err
		}
	}
	if err := s.insist(ctx, "age the totals", func(ctx context.Context) error { return s.ageTotals(ctx) }); err != nil {
		return err
	}
	for source, l := range s.ledgers {
		file := filepath.Join(s.Dir, "due-"+source)
		if err := s.insist(ctx, "read the expired rows", func(ctx context.Context) error { return s.readDue(ctx, source, file) }); err != nil {
			return err
		}
		l.expire(file)
	}
	return s.keep(ctx, agedKept)
}

// ageTotals ages the days of all lane states, each once.
func (s *site) ageTotals(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	states, err := s.laneStates(ctx)
	if err != nil {
		return err
	}
	lanes, err := states.ListKeysFiltered(ctx, "lane.*")
	if err != nil {
		return err
	}
	for key := range lanes.Keys() {
		if err := ageTotal(ctx, states, key); err != nil {
			return err
		}
	}
	return nil
}

func ageTotal(ctx context.Context, states jetstream.KeyValue, key string) error {
	entry, err := states.Get(ctx, key)
	if err != nil {
		return err
	}
	var state map[string]json.RawMessage
	var days []map[string]any
	if err := json.Unmarshal(entry.Value(), &state); err != nil || state["stored_days"] == nil {
		return err
	}
	decoder := json.NewDecoder(strings.NewReader(string(state["stored_days"])))
	decoder.UseNumber()
	if err := decoder.Decode(&days); err != nil {
		return err
	}
	yesterday := time.Now().UTC().AddDate(0, 0, -1)
	for _, run := range days {
		day, err := time.Parse(time.DateOnly, fmt.Sprint(run["day"]))
		if err != nil {
			return err
		}
		if !day.Before(yesterday.Truncate(24 * time.Hour)) {
			run["day"] = day.AddDate(0, 0, -agedBy).Format(time.DateOnly)
		}
	}
	if state["stored_days"], err = json.Marshal(days); err != nil {
		return err
	}
	value, err := json.Marshal(state)
	if err != nil {
		return err
	}
	_, err = states.Update(ctx, key, value, entry.Revision())
	return err
}

// readDue writes the expired rows of a source to a file.
func (s *site) readDue(ctx context.Context, source, name string) error {
	query := strings.Replace(oracle.New(source).Records().Query("flow", source), " FORMAT", " AND NOT stored_at"+recent+" FORMAT", 1)
	rows, err := s.Rows(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(file, rows)
	return err
}
