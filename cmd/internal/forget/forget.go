// Package forget removes process instances, or all instances of a person, from
// everything that Sluice keeps, while records flow, and writes a receipt.
//
//  1. What was accepted before it began is stored: it waits for that.
//  2. The receipt is written, with the instances and no value. From here on an
//     interruption is found, and finished by the next run.
//  3. Where their records stand is noted in flow.forgotten. From here on a repeat
//     of one is known by that, with or without its row.
//  4. Messages of the lanes that hold such records are redacted: all others keep
//     their places, so that verify and rebuild read on.
//  5. The rows are removed from flow.records and from every fold, and dead letters
//     that name the instances are erased.
//  6. It looks once more, counts the days again, and completes the receipt.
//
// Every step may be repeated.
package forget

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"sluice/cmd/internal/audit/recount"
	"sluice/pkg/record"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// Config says what to forget, and how.
type Config struct {
	Instance string // processInstanceKey; or
	Variable string // name of a variable,
	Value    string // and the value that it has, or ever had; JSON, or a text without its quotes
	Source   string // of this engine only; default all
	By       string // name of the person who asked; for the receipt

	Running  bool                     // also instances that have not ended
	Dry      bool                     // look, and change nothing
	Wait     time.Duration            // for what is accepted to be stored; default 1 min
	Recount  recount.Config           // of the days
	Progress func(done, total uint64) // called with messages of a lane; default none
}

// forgetting is one receipt that is being carried out.
type forgetting struct {
	cfg     Config
	stream  *stream.Stream
	db      *warehouse.DB
	receipt *Receipt
	names   names
	columns record.Columns
}

func (c Config) withDefaults() Config {
	if c.Wait == 0 {
		c.Wait = time.Minute
	}
	if c.Progress == nil {
		c.Progress = func(uint64, uint64) {}
	}
	return c
}

// Run finishes what was begun, and then forgets what is asked for, if anything is.
// It returns a receipt for each, as far as it came.
func Run(ctx context.Context, s *stream.Stream, db *warehouse.DB, cfg Config) (all []*Receipt, err error) {
	cfg = cfg.withDefaults()
	kept, err := db.Receipts(ctx)
	if err != nil {
		return nil, err
	}
	for _, one := range kept {
		if one.Done || cfg.Dry {
			continue
		}
		r, err := parse(one)
		if err != nil {
			return all, err
		}
		all = append(all, r)
		if err := begin(s, db, cfg, r).finish(ctx); err != nil {
			return all, fmt.Errorf("finish receipt %s, begun at %s: %w", r.ID, r.Begun.Format(time.RFC3339), err)
		}
	}
	if cfg.Instance == "" && cfg.Variable == "" {
		return all, nil
	}
	r := &Receipt{ID: strings.ToLower(rand.Text()[:12]), Begun: time.Now().UTC().Truncate(time.Millisecond), Asked: "variable " + cfg.Variable, By: cfg.By, OutOfReach: outOfReach}
	if cfg.Instance != "" {
		r.Asked = "instance " + cfg.Instance
	}
	f := begin(s, db, cfg, r)
	if _, err := f.settled(ctx); err != nil { // or their last records are not looked at
		return all, err
	}
	if err := f.find(ctx); err != nil {
		return all, err
	}
	all = append(all, r)
	if cfg.Dry {
		return all, f.count(ctx, nil)
	}
	if err := db.WriteReceipt(ctx, r.ID, r.Begun, r.Done, r.text()); err != nil {
		return all, err
	}
	return all, f.finish(ctx)
}

func begin(s *stream.Stream, db *warehouse.DB, cfg Config, r *Receipt) *forgetting {
	cfg.Recount.By = "forget-" + r.ID // goes on when it was interrupted
	return &forgetting{cfg: cfg, stream: s, db: db, receipt: r, names: newNames(r.Subjects)}
}

// find finds the instances.
func (f *forgetting) find(ctx context.Context) (err error) {
	cfg, what := f.cfg, ""
	if cfg.Instance != "" {
		what = "is instance " + cfg.Instance
		f.receipt.Subjects, err = f.db.SubjectsOf(ctx, cfg.Source, cfg.Instance)
	} else {
		what = "has such a value of the variable " + cfg.Variable
		f.receipt.Subjects, err = f.db.SubjectsWith(ctx, cfg.Source, cfg.Variable, cfg.Value)
	}
	if err != nil {
		return err
	}
	if len(f.receipt.Subjects) == 0 {
		return fmt.Errorf("nothing %s: it was forgotten, or is another source's", what)
	}
	f.names = newNames(f.receipt.Subjects)
	for _, s := range f.receipt.Subjects {
		running, err := f.db.Running(ctx, s)
		if err != nil {
			return err
		}
		if len(running) > 0 && !cfg.Running {
			return fmt.Errorf("%d of the instances have not ended, instance %s of %q first: cancel them in the engine, or their next records bring them back; --running forgets them all the same", len(running), running[0], s.Source)
		}
	}
	return nil
}

// rounds bounds how often it is looked whether something is left: what was accepted
// just before may have been stored meanwhile.
const rounds = 5

// finish carries out a receipt from the beginning. Whatever was done before is
// found done.
func (f *forgetting) finish(ctx context.Context) error {
	r := f.receipt
	for range rounds {
		lanes, err := f.settled(ctx)
		if err != nil {
			return err
		}
		if err := f.stream.FinishRedactions(ctx); err != nil {
			return err
		}
		unsettled := startsOf(lanes)
		for _, s := range r.Subjects {
			if err := f.db.Note(ctx, r.ID, s, unsettled); err != nil {
				return err
			}
		}
		if r.Found == nil {
			if err := f.count(ctx, unsettled); err != nil {
				return err
			}
			if err := f.db.WriteReceipt(ctx, r.ID, r.Begun, r.Done, r.text()); err != nil {
				return err
			}
		}
		for _, l := range lanes {
			if err := f.redact(ctx, l); err != nil {
				return fmt.Errorf("redact lane %d: %w", l.number, err)
			}
		}
		for _, s := range r.Subjects {
			if err := f.db.Remove(ctx, r.ID, s); err != nil {
				return err
			}
		}
		letters := stream.NewDeadLetters(f.stream)
		if _, err := f.letters(ctx, func(d stream.DeadLetter) error { return letters.Erase(ctx, d) }); err != nil {
			return err
		}
		left, err := f.left(ctx, unsettled)
		if err != nil {
			return err
		}
		if left == 0 {
			return f.complete(ctx)
		}
	}
	return errors.New("records of the instances keep coming: run it again when they have ended")
}

// complete counts the days again and writes the receipt.
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
	if r.Messages, r.Copies, err = f.stream.Redacted(ctx, r.ID); err != nil {
		return err
	}
	r.Recounted, r.NotRecounted = []string{}, nil
	for _, day := range days {
		_, err := recount.Run(ctx, f.stream, f.db, []string{day}, f.cfg.Recount)
		switch {
		case errors.Is(err, warehouse.ErrExpired):
			r.NotRecounted = append(r.NotRecounted, day)
		case err != nil:
			return err
		default:
			r.Recounted = append(r.Recounted, day)
		}
	}
	r.Done = time.Now().UTC().Truncate(time.Millisecond)
	return f.db.WriteReceipt(ctx, r.ID, r.Begun, r.Done, r.text())
}

// count fills in how much there is.
func (f *forgetting) count(ctx context.Context, unsettled []warehouse.Start) (err error) {
	found := &Found{Tables: map[string]uint64{}}
	for _, s := range f.receipt.Subjects {
		records, err := f.db.RecordsOf(ctx, s, unsettled)
		if err != nil {
			return err
		}
		found.Records += records
		tables, err := f.db.RowsOf(ctx, f.receipt.ID, s)
		if err != nil {
			return err
		}
		for table, rows := range tables {
			found.Tables[table] += rows
		}
	}
	found.DeadLetters, err = f.letters(ctx, func(stream.DeadLetter) error { return nil })
	f.receipt.Found = found
	return err
}

// left counts what is there still.
func (f *forgetting) left(ctx context.Context, unsettled []warehouse.Start) (n uint64, err error) {
	for _, s := range f.receipt.Subjects {
		records, err := f.db.RecordsOf(ctx, s, unsettled)
		if err != nil {
			return 0, err
		}
		tables, err := f.db.RowsOf(ctx, f.receipt.ID, s)
		if err != nil {
			return 0, err
		}
		n += records
		for _, rows := range tables {
			n += rows
		}
	}
	return n, nil
}

// settled waits until everything that the lanes hold now is stored or set aside.
func (f *forgetting) settled(ctx context.Context) (all []lane, err error) {
	if err := f.stream.Refresh(ctx); err != nil {
		return nil, err
	}
	positions := stream.NewPositions(f.stream)
	deadline := time.Now().Add(f.cfg.Wait)
	for _, info := range f.stream.Lanes() {
		if err := f.stream.CanRedact(ctx, info.Number); err != nil {
			return nil, err
		}
		for {
			pos, err := positions.Read(ctx, info.Number)
			switch {
			case err != nil:
				return nil, err
			case info.Last == 0, pos.Done >= info.Last && pos.Stream == info.Identity():
			case pos.Stream != "" && pos.Stream != info.Identity():
				return nil, fmt.Errorf("lane %d was deleted and made again: sluice lanes reset says where it goes on", info.Number)
			case time.Now().After(deadline):
				return nil, fmt.Errorf("lane %d is stored up to message %d of %d after %v: is its ingester running?", info.Number, pos.Done, info.Last, f.cfg.Wait)
			default:
				select {
				case <-time.After(50 * time.Millisecond):
				case <-ctx.Done():
					return nil, ctx.Err()
				}
				continue
			}
			if pos.Incarnation > 0 {
				all = append(all, lane{info.Number, pos.Incarnation, pos.Done})
			}
			break
		}
	}
	return all, nil
}

// startsOf are the messages from which on the lanes may not be stored.
func startsOf(lanes []lane) (all []warehouse.Start) {
	for _, l := range lanes {
		all = append(all, warehouse.Start{Lane: l.number, Incarnation: l.incarnation, First: l.done + 1})
	}
	return all
}
