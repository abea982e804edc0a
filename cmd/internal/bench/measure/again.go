package measure

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sluice/cmd/internal/parts"
	"sluice/pkg/load"
)

// Requests of records that are sent again have other boundaries, as after a
// restart of a broker: none of them is the same request.
const (
	firstBatch = 500
	againBatch = 700
)

// again is how fast records are known that come a second time: as many as are
// stored for the first time before, by the same api and ingester.
func (b *bench) again(ctx context.Context, s *parts.Stage) (rows, error) {
	var all rows
	for _, kind := range []struct {
		name     string
		envelope load.Envelope
	}{{"with positions", load.FullEnvelope}, {"with an id only", load.SlimEnvelope}} {
		r := rows{
			{What: fmt.Sprintf("%s records %s, sent again: their rate, of that of the first time", number(float64(b.plan.records)), kind.name), Goal: atLeast(0.5, 0)},
			{What: "– the first time, HTTP to queryable, batches of 500", Unit: "rec/s"},
			{What: "– again, HTTP to recognised, batches of 700", Unit: "rec/s"},
			{What: "– ingester, CPU per million, the first time", Unit: "s"},
			{What: "– ingester, CPU per million, again", Unit: "s"},
		}
		cfg := load.Config{Batch: firstBatch, Connections: connections, Records: b.plan.records, Envelope: kind.envelope}
		err := b.repeat(ctx, s, job{name: "first " + kind.name, load: cfg, took: func(first pass) error {
			again, err := b.passAgain(ctx, s, first)
			if err != nil {
				return err
			}
			b.note("again %s: %s rec/s", kind.name, number(again.StoredPerSec))
			r.add(again.StoredPerSec/first.StoredPerSec, first.StoredPerSec, again.StoredPerSec, first.cpu(parts.Ingester), again.cpu(parts.Ingester))
			return nil
		}})
		b.tell(r)
		if err != nil {
			return nil, err
		}
		all = append(all, r...)
	}
	return all, nil
}

// passAgain posts the records of a pass once more, waits until all are recognised,
// and compares what is stored with what was acknowledged: none is there twice.
func (b *bench) passAgain(ctx context.Context, s *parts.Stage, first pass) (pass, error) {
	cfg := first.load
	cfg.Batch = againBatch
	before, err := repeated(ctx, s)
	if err != nil {
		return pass{}, err
	}
	return b.send(ctx, s, cfg, func(ctx context.Context, acked load.Totals) error {
		for moved := time.Now(); time.Since(moved) < time.Minute; {
			now, err := repeated(ctx, s)
			if err != nil || now >= before+acked.Records {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pause):
			}
		}
		return fmt.Errorf("%w: not all of %d records were recognised within a minute", load.ErrNotStored, acked.Records)
	})
}

// repeated is how many records the ingesters have recognised.
func repeated(ctx context.Context, s *parts.Stage) (n int64, err error) {
	for _, p := range s.Parts {
		if p.Ops == "" || p.Name == parts.API {
			continue
		}
		m, err := p.Metrics(ctx)
		if err != nil {
			return 0, err
		}
		for name, value := range m {
			if strings.HasPrefix(name, "sluice_ingest_repeated_records_total{") {
				n += int64(value)
			}
		}
	}
	return n, nil
}
