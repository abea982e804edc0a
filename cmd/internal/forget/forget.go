// Package forget removes process instances, or all instances of a person, from all data
// of Sluice, while records flow, and writes a receipt.
//
//  1. Wait until all accepted records are stored, and find the instances.
//  2. Write the order to the KV store and wait until every checkpoint has passed
//     the end of its lane. From here on every reader of the log skips the records.
//  3. Note where the rows are in flow.forgotten, delete them from flow.records and
//     from every aggregate table, and erase dead letters that name the instances.
//  4. Recount the days, and complete the receipt.
//
// The bytes in the lanes are deleted with their history. Every step may be
// repeated; an order without a complete receipt, as after a crash or a restored
// ClickHouse, is carried out by the next run.
package forget

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice/cmd/internal/audit/recount"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

type Config struct {
	Instance string // processInstanceKey; or
	Variable string // name of a variable,
	Value    string // and a value that it has or had; JSON, or a text without its quotes
	Source   string // only of this engine; default all
	By       string // name of the person requesting it; for the receipt

	// Receipts are of other installations, or of this one before a restore: their orders
	// are written again, and carried out where ClickHouse lacks the receipt.
	Receipts []*Receipt

	// Backups is how long backups are kept. An order older than this, the retention of
	// records and the history of the lanes is deleted: no copy of its records is left.
	// Default 0: orders stay.
	Backups time.Duration

	Running bool           // also instances that have not ended
	Dry     bool           // only find and count
	Wait    time.Duration  // for accepted records to be stored; default 1 min
	History time.Duration  // how long lanes keep stored messages, as configured for the ingesters; default 24 h
	Recount recount.Config // of the days
}

// forgetting carries out one receipt.
type forgetting struct {
	cfg     Config
	stream  *stream.Stream
	db      *warehouse.DB
	receipt *Receipt
}

// Run carries out the orders without a complete receipt, and then that of cfg, if any. It
// returns a receipt for each; after an error the last may be incomplete.
func Run(ctx context.Context, s *stream.Stream, db *warehouse.DB, cfg Config) (all []*Receipt, err error) {
	if cfg.Wait == 0 {
		cfg.Wait = time.Minute
	}
	if cfg.History == 0 {
		cfg.History = 24 * time.Hour
	}
	if !cfg.Dry {
		for _, r := range cfg.Receipts {
			if err := s.RestoreForget(ctx, r.order()); err != nil {
				return nil, err
			}
		}
		if err := end(ctx, s, db, cfg); err != nil {
			return nil, err
		}
		if all, err = unfinished(ctx, s, db); err != nil {
			return nil, err
		}
	}
	for _, r := range all {
		if err := begin(s, db, cfg, r).finish(ctx); err != nil {
			return all, fmt.Errorf("finish receipt %s, begun at %s: %w", r.ID, r.Begun.Format(time.RFC3339), err)
		}
	}
	if cfg.Instance == "" && cfg.Variable == "" {
		return all, nil
	}
	r := &Receipt{ID: strings.ToLower(rand.Text()[:12]), Begun: now(), Asked: "variable " + cfg.Variable, By: cfg.By, OutOfReach: outOfReach}
	if cfg.Instance != "" {
		r.Asked = "instance " + cfg.Instance
	}
	f := begin(s, db, cfg, r)
	if _, err := f.settled(ctx, nil); err != nil { // find must see their last records
		return all, err
	}
	if err := f.find(ctx); errors.Is(err, errNone) && slices.ContainsFunc(all, func(done *Receipt) bool { return done.Asked == r.Asked }) {
		return all, nil // the order of an interrupted run, carried out above
	} else if err != nil {
		return all, err
	}
	all = append(all, r)
	if cfg.Dry {
		return all, f.count(ctx, nil)
	}
	return all, f.finish(ctx)
}

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// unfinished are the orders without a complete receipt in ClickHouse.
func unfinished(ctx context.Context, s *stream.Stream, db *warehouse.DB) (all []*Receipt, err error) {
	orders, err := s.Forgets(ctx)
	if err != nil {
		return nil, err
	}
	kept, err := db.Receipts(ctx)
	if err != nil {
		return nil, err
	}
	receipts := map[string]warehouse.Receipt{}
	for _, one := range kept {
		receipts[one.ID] = one
	}
	for _, order := range orders {
		one, known := receipts[order.ID]
		if one.Done {
			continue
		}
		r := &Receipt{ID: order.ID, Begun: now(), Asked: order.Asked, By: order.By, OutOfReach: outOfReach}
		if known {
			if err := json.Unmarshal([]byte(one.Text), r); err != nil {
				return nil, fmt.Errorf("read receipt %s: %w", order.ID, err)
			}
		}
		r.Before, r.Subjects = time.UnixMilli(order.Before).UTC(), order.Subjects
		all = append(all, r)
	}
	return all, nil
}

// end deletes expired orders, see Config.Backups.
func end(ctx context.Context, s *stream.Stream, db *warehouse.DB, cfg Config) error {
	if cfg.Backups == 0 {
		return nil
	}
	keep := max(cfg.Backups, cfg.History)
	retentions, err := db.Retentions(ctx)
	if err != nil {
		return err
	}
	for _, r := range retentions {
		if r.Table == "records" && r.Days == 0 { // records never expire, and an engine may resend one at any time
			return nil
		} else if r.Table == "records" {
			keep = max(keep, time.Duration(r.Days+1)*24*time.Hour)
		}
	}
	kept, err := db.Receipts(ctx)
	if err != nil {
		return err
	}
	for _, one := range kept {
		var r Receipt
		if err := json.Unmarshal([]byte(one.Text), &r); err != nil {
			return fmt.Errorf("read receipt %s: %w", one.ID, err)
		}
		if !one.Done || time.Since(r.Done) < keep || slices.ContainsFunc(cfg.Receipts, func(again *Receipt) bool { return again.ID == r.ID }) {
			continue
		}
		if err := s.EndForget(ctx, r.ID); err != nil {
			return err
		}
	}
	return nil
}

func begin(s *stream.Stream, db *warehouse.DB, cfg Config, r *Receipt) *forgetting {
	cfg.Recount.By = "forget-" + r.ID // takes over its own hold after an interruption
	return &forgetting{cfg: cfg, stream: s, db: db, receipt: r}
}

var errNone = errors.New("it was forgotten, has expired, or belongs to another source: check --source")

// find adds the instances to the receipt.
func (f *forgetting) find(ctx context.Context) error {
	var subjects []warehouse.Subject
	var err error
	cfg, missing := f.cfg, ""
	if cfg.Instance != "" {
		missing = "no instance " + cfg.Instance
		subjects, err = f.db.SubjectsOf(ctx, cfg.Source, cfg.Instance)
	} else {
		missing = "no instance has this value of variable " + cfg.Variable
		subjects, err = f.db.SubjectsWith(ctx, cfg.Source, cfg.Variable, cfg.Value)
	}
	if err != nil {
		return err
	}
	if len(subjects) == 0 {
		return fmt.Errorf("%s: %w", missing, errNone)
	}
	before := time.Now().UnixMilli()
	for _, s := range subjects {
		running, err := f.db.Running(ctx, s)
		if err != nil {
			return err
		}
		if len(running) > 0 && !cfg.Running {
			return fmt.Errorf("%d instances are active, such as %s of source %q: cancel them in the engine, or add --running, which stores their later records", len(running), running[0], s.Source)
		}
		last, err := f.db.LastOf(ctx, s) // an engine's clock may be ahead
		if err != nil {
			return err
		}
		before = max(before, last)
		f.receipt.Subjects = append(f.receipt.Subjects, flow.ForgetSubject(s))
	}
	f.receipt.Before = time.UnixMilli(before).UTC()
	return nil
}

func (f *forgetting) each(do func(warehouse.Subject) error) error {
	for _, s := range f.receipt.Subjects {
		if err := do(warehouse.Subject(s)); err != nil {
			return err
		}
	}
	return nil
}

// finish carries out a receipt from its first step. Repeated steps change nothing.
func (f *forgetting) finish(ctx context.Context) error {
	r := f.receipt
	ends, err := f.stream.Forget(ctx, r.order())
	if err != nil {
		return err
	}
	// Ordered. A crash from here on leaves an order without a complete receipt, which the
	// next run carries out.
	unsettled, err := f.settled(ctx, ends)
	if err != nil {
		return err
	}
	before := r.Before.UnixMilli()
	if err := f.each(func(s warehouse.Subject) error { return f.db.Note(ctx, r.ID, s, before, unsettled) }); err != nil {
		return err
	}
	if r.Found == nil {
		if err := f.count(ctx, unsettled); err != nil {
			return err
		}
	}
	if err := f.db.WriteReceipt(ctx, r.ID, r.Begun, time.Time{}, r.text()); err != nil {
		return err
	}
	// Noted. A crash from here on leaves rows that verify counts as forgotten.
	if err := f.each(func(s warehouse.Subject) error { return f.db.Remove(ctx, r.ID, s) }); err != nil {
		return err
	}
	letters := stream.NewDeadLetters(f.stream)
	if _, err := f.letters(ctx, func(d stream.DeadLetter) error { return letters.Erase(ctx, d) }); err != nil {
		return err
	}
	return f.complete(ctx)
}

// complete recounts the days and writes the receipt.
func (f *forgetting) complete(ctx context.Context) (err error) {
	r := f.receipt
	var days []string
	if r.Lanes, days, err = f.db.Forgotten(ctx, r.ID); err != nil {
		return err
	}
	r.Records = 0
	for _, l := range r.Lanes {
		r.Records += l.Records
	}
	r.Recounted = []string{}
	for _, day := range days {
		if _, err := recount.Run(ctx, f.stream, f.db, []string{day}, f.cfg.Recount); err != nil {
			return err
		}
		r.Recounted = append(r.Recounted, day)
	}
	r.Done = now()
	r.LogUntil = r.Done.Add(f.cfg.History)
	return f.db.WriteReceipt(ctx, r.ID, r.Begun, r.Done, r.text())
}

// count counts the rows, models and dead letters of the instances.
func (f *forgetting) count(ctx context.Context, unsettled []warehouse.Start) (err error) {
	r := f.receipt
	found := &Found{Tables: map[string]uint64{}}
	r.Models = []string{}
	err = f.each(func(s warehouse.Subject) error {
		records, err := f.db.RecordsOf(ctx, s, r.Before.UnixMilli(), unsettled)
		if err != nil {
			return err
		}
		found.Records += records
		models, err := f.db.ModelsOf(ctx, s)
		if err != nil {
			return err
		}
		r.Models = append(r.Models, models...)
		tables, err := f.db.RowsOf(ctx, r.ID, s)
		for table, rows := range tables {
			found.Tables[table] += rows
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(r.Models)
	r.Models = slices.Compact(r.Models)
	found.DeadLetters, err = f.letters(ctx, func(stream.DeadLetter) error { return nil })
	r.Found = found
	return err
}

// settled waits until every checkpoint has passed ends, or the present ends of the lanes
// if nil. It returns each lane's first message that may not be stored.
func (f *forgetting) settled(ctx context.Context, ends map[int]uint64) (unsettled []warehouse.Start, err error) {
	if err := f.stream.Refresh(ctx); err != nil {
		return nil, err
	}
	positions := stream.NewLaneStates(f.stream)
	deadline := time.Now().Add(f.cfg.Wait)
	for _, info := range f.stream.Lanes() {
		end := info.Last
		if ends != nil {
			end = ends[info.Number]
		}
		for {
			pos, err := positions.Read(ctx, info.Number)
			switch {
			case err != nil:
				return nil, err
			case end == 0, pos.Done >= end && pos.StreamID == info.StreamID():
			case pos.StreamID != "" && pos.StreamID != info.StreamID():
				return nil, fmt.Errorf("lane %d was deleted and recreated: set its resume point with sluice lanes reset", info.Number)
			case time.Now().After(deadline):
				return nil, fmt.Errorf("lane %d is stored only up to message %d of %d after %v: check its ingester, or raise --wait", info.Number, pos.Done, end, f.cfg.Wait)
			default:
				select {
				case <-time.After(50 * time.Millisecond):
				case <-ctx.Done():
					return nil, ctx.Err()
				}
				continue
			}
			if pos.Incarnation() > 0 {
				unsettled = append(unsettled, warehouse.Start{Lane: info.Number, Incarnation: pos.Incarnation(), First: pos.Done + 1})
			}
			break
		}
	}
	return unsettled, nil
}

// letters calls do with every dead letter that names one of the instances.
func (f *forgetting) letters(ctx context.Context, do func(stream.DeadLetter) error) (n int, err error) {
	forgets := record.NewForgets([]flow.Forget{f.receipt.order()})
	for d, err := range stream.NewDeadLetters(f.stream).List(ctx, stream.DeadFilter{}) {
		if err != nil {
			return n, err
		}
		if !forgets.Names(&d.Message, d.Index, d.Message.Body) {
			continue
		}
		n++
		if err := do(d); err != nil {
			return n, fmt.Errorf("dead letter %d: %w", d.Number, err)
		}
	}
	return n, nil
}
