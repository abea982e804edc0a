package measure

import (
	"context"
	"path/filepath"
	"strconv"
	"time"

	"sluice/cmd/internal/parts"
	"sluice/pkg/embedded/clickhouse/library"
	"sluice/pkg/programtest"
)

// start is how long `sluice up` takes from nothing until it is ready.
func (b *bench) start(ctx context.Context) (rows, error) {
	r := rows{{What: "start of sluice up until ready, fresh folder", Unit: "s", Goal: atMost(3, 0)}}
	for n := range b.plan.runs + 1 { // the first one is the warm-up
		took, err := b.up(ctx, n)
		if err != nil {
			return r, err
		}
		if n > 0 {
			r.add(took.Seconds())
		}
	}
	b.tell(r)
	return r, nil
}

func (b *bench) up(ctx context.Context, n int) (took time.Duration, err error) {
	file, err := library.Fetched()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ops := programtest.Address()
	began := time.Now()
	p, err := parts.Spawn(b.dir, "up", ops, filepath.Join(b.dir, "bin", "sluice"), "up", "--data", filepath.Join(b.dir, "up-"+strconv.Itoa(n)),
		"--http", programtest.Address(), "--ops", ops, "--nats", programtest.Address(), "--clickhouse", programtest.Address(), "--clickhouse-http", programtest.Address(),
		"--console", programtest.Address(), "--clickhouse-library", file)
	if err != nil {
		return 0, err
	}
	err = p.Ready(ctx)
	took = time.Since(began)
	if stopErr := p.Stop(); err == nil {
		err = stopErr
	}
	return took, err
}
