// Package rolling replaces the processes of a running Sluice one after the other
// while records and changes come in, as a deployment does when it restarts or goes
// from one version to another.
//
//	clients ──▶ balancer ──▶ api, api 2 ──▶ NATS ──▶ ingester, ingester 2 ──▶ engine
//
// Clients follow the advice of docs/clients.md: the same request again after a
// failure, and here for no longer than a second. In the end every record is stored
// once, every field is as it was put last, and sluice verify agrees.
package rolling

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/parts"
)

// Config says what is replaced by what.
type Config struct {
	Bin   string    // folder of the programs that run at first, of NATS and the engine throughout
	Dir   string    // for data and logs; made
	Rate  float64   // records per second; default 1000
	Waves []Wave    // one after the other; at least one
	Out   io.Writer // gets one line per wave and one in the end; default none

	// Settled begins to roll once a second of records is stored. Else it begins with
	// the first record of the lanes, which v0.1.0 does not survive: an entry that is
	// the second of its lane may be lost to it when the lane is taken over just then.
	Settled bool
}

// Wave replaces every api and every ingester once, one api and one ingester at a
// time.
type Wave struct {
	Name  string // for people
	Bin   string // folder of the programs that come
	Order Order
}

// Order says which processes of a wave go first.
type Order int

// Orders of a wave. The reader of a format goes before its writer when a new version
// comes, and after it when it goes.
const (
	Together       Order = iota // apis and ingesters at the same time
	IngestersFirst              // to a later version
	APIsFirst                   // back to an earlier one
)

// Report is what was seen.
type Report struct {
	Replaced int              // processes
	Records  int64            // acknowledged, each stored once
	Fields   int64            // changes of dataset fields that were answered OK
	Refused  map[string]int64 // attempts that failed, by reason: the client's next one within a second went well
	Slowest  time.Duration    // from the first attempt at a request to its answer
}

// lanes are as many as ingesters, so that each has work.
const lanes = 2

// Run starts everything, replaces it wave by wave under load, and compares. Nothing
// is left running.
func Run(ctx context.Context, cfg Config) (r Report, err error) {
	if len(cfg.Waves) == 0 {
		return r, errors.New("a roll needs a wave")
	}
	if cfg.Rate == 0 {
		cfg.Rate = 1000
	}
	if cfg.Out == nil {
		cfg.Out = io.Discard
	}
	s, err := parts.Start(ctx, cfg.Bin, filepath.Join(cfg.Dir, "stage"))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	for range lanes - 1 {
		if err := s.Sluice(ctx, "lanes", "add", "--nats", s.NATS); err != nil {
			return r, err
		}
	}
	if err := errors.Join(s.AddIngester(ctx), s.AddAPI(ctx)); err != nil {
		return r, err
	}
	balancer, err := newBalancer(s.APIs())
	if err != nil {
		return r, err
	}
	defer balancer.close()

	clients := newClients(s, "http://"+balancer.addr(), cfg.Rate)
	all, working := errgroup.WithContext(ctx)
	rolled := make(chan struct{})
	all.Go(func() error { return clients.post(working, rolled) })
	all.Go(func() error { return clients.change(working, rolled) })
	all.Go(func() error {
		defer close(rolled)
		if cfg.Settled {
			if err := clients.answers(working, fmt.Sprintf("SELECT count() >= %d FROM flow.records", int64(cfg.Rate)), "1"); err != nil {
				return err
			}
		}
		for _, w := range cfg.Waves {
			began := time.Now()
			if err := w.roll(working, s, balancer); err != nil {
				return fmt.Errorf("%s: %w", w.Name, err)
			}
			r.Replaced += len(s.APIs()) + len(s.Ingesters())
			fmt.Fprintf(cfg.Out, "%s: rolled in %.1f s\n", w.Name, time.Since(began).Seconds())
		}
		return nil
	})
	if err := all.Wait(); err != nil {
		return r, err
	}
	clients.report(&r)
	if err := clients.compare(ctx); err != nil {
		return r, err
	}
	if err := s.Verify(ctx, cfg.Waves[len(cfg.Waves)-1].Bin); err != nil {
		return r, err
	}
	fmt.Fprintf(cfg.Out, "%d processes replaced: %d records stored once, %d changes applied; failed attempts %v, all settled by the next within %v; the slowest request took %v\n",
		r.Replaced, r.Records, r.Fields, r.Refused, patience, r.Slowest.Round(time.Millisecond))
	return r, nil
}

// roll replaces what runs, one api and one ingester at a time.
func (w Wave) roll(ctx context.Context, s *parts.Stage, b *balancer) error {
	each := func(list []*parts.Part) func() error {
		return func() error {
			for _, p := range list {
				if err := p.Replace(ctx, w.Bin); err != nil {
					return err
				}
				if err := b.taken(ctx, p); err != nil {
					return err
				}
			}
			return nil
		}
	}
	apis, ingesters := each(s.APIs()), each(s.Ingesters())
	switch w.Order {
	case IngestersFirst:
		return inOrder(ingesters, apis)
	case APIsFirst:
		return inOrder(apis, ingesters)
	}
	var both errgroup.Group
	both.Go(apis)
	both.Go(ingesters)
	return both.Wait()
}

func inOrder(first, second func() error) error {
	if err := first(); err != nil {
		return err
	}
	return second()
}
