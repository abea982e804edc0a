package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
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

// ageTotals ages the days and open claims of all lane states, each once.
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
	var claim map[string]any
	var done uint64
	if err := json.Unmarshal(entry.Value(), &state); err != nil {
		return err
	}
	if err := errors.Join(decode(state["stored_days"], &days), decode(state["claim"], &claim), decode(state["done"], &done)); err != nil {
		return err
	}
	yesterday := time.Now().UTC().AddDate(0, 0, -1)
	if at, err := strconv.ParseInt(fmt.Sprint(claim["stored_at"]), 10, 64); err == nil && at > yesterday.UnixMilli() { // an engine that was down left it open
		claim["stored_at"] = at - agedBy*24*time.Hour.Milliseconds()
		if state["claim"], err = json.Marshal(claim); err != nil {
			return err
		}
	}
	for _, run := range days {
		day, err := time.Parse(time.DateOnly, fmt.Sprint(run["day"]))
		if err != nil {
			return err
		}
		if !day.Before(yesterday.Truncate(24 * time.Hour)) {
			run["day"] = day.AddDate(0, 0, -agedBy).Format(time.DateOnly)
		}
	}
	// Messages without a row are as old: a rebuild must not read repeats of what has expired as new.
	if n := len(days); done > 0 && (n == 0 || fmt.Sprint(days[n-1]["last"]) != fmt.Sprint(done)) {
		days = append(days, map[string]any{"day": yesterday.AddDate(0, 0, 1-agedBy).Format(time.DateOnly), "rows": 0, "last": done})
	}
	if days != nil {
		if state["stored_days"], err = json.Marshal(days); err != nil {
			return err
		}
	}
	value, err := json.Marshal(state)
	if err != nil {
		return err
	}
	_, err = states.Update(ctx, key, value, entry.Revision())
	return err
}

// decode decodes a member of a lane state, if it is there, with numbers as they are.
func decode(member json.RawMessage, into any) error {
	if member == nil {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(member))
	decoder.UseNumber()
	return decoder.Decode(into)
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
