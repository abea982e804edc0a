package measure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sluice/cmd/internal/parts"
	"sluice/pkg/programtest"
)

// bench is a measurement under way.
type bench struct {
	cfg  Config
	plan plan
	dir  string // of everything; removed in the end
	seed uint64 // of the records of the latest run

	began time.Time
}

// Run measures, writes the page and returns what stands on it. The error wraps
// load.ErrNotStored when something else than what was acknowledged is stored;
// then nothing is written, and the folder with data and logs stays.
func Run(ctx context.Context, cfg Config) (_ Page, err error) {
	p, err := cfg.plan()
	if err != nil {
		return Page{}, err
	}
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return Page{}, err
	}
	b := &bench{cfg: cfg, plan: p, dir: dir, began: time.Now()}
	defer func() {
		if err == nil || ctx.Err() != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		} else {
			err = fmt.Errorf("%w (data and logs are in %s)", err, dir)
		}
	}()
	page := Page{Command: cfg.Command, Short: cfg.Short, Runs: p.runs, Records: float64(p.records), Began: b.began}
	if page.Machine, err = lookAround(ctx, dir, p.watch); err != nil {
		return Page{}, err
	}
	if err := programtest.Build(ctx, filepath.Join(dir, "bin")); err != nil {
		return Page{}, err
	}
	if cfg.Only == "" || cfg.Only == Capacity {
		if err := b.capacity(ctx, page.Machine); err != nil {
			return Page{}, err
		}
	}
	if cfg.Only == Capacity {
		return page, nil // no page is made of it
	}
	if cfg.Only == Delay {
		if cfg.Short {
			b.plan.runs, page.Runs = 1, 1
		}
		if err := b.delay(ctx, &page); err != nil {
			return Page{}, err
		}
		page.Took = time.Since(page.Began)
		return page, page.writeDelay(cfg.Out)
	}
	if cfg.Only != Scaling {
		if err := b.goals(ctx, &page); err != nil {
			return Page{}, err
		}
	}
	if cfg.Only == "" || cfg.Only == Scaling {
		if err := b.scaling(ctx, &page); err != nil {
			return Page{}, err
		}
	}
	page.Took = time.Since(page.Began)
	return page, page.write(cfg.Out)
}

// on does something with a deployment of its own that has one ingester.
func (b *bench) on(ctx context.Context, name string, do func(*parts.Stage) error) (err error) {
	dir := filepath.Join(b.dir, name)
	s, err := parts.Start(ctx, filepath.Join(b.dir, "bin"), dir)
	if err != nil {
		return err
	}
	stopped := false
	defer func() {
		if !stopped {
			err = errors.Join(err, s.Stop())
		}
	}()
	if err := do(s); err != nil {
		return err
	}
	stopped = true
	return errors.Join(s.Stop(), os.RemoveAll(dir))
}

// note tells whoever watches what was seen, and when.
func (b *bench) note(format string, args ...any) {
	fmt.Fprintf(b.cfg.Log, "%5.1fs  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...)) // a terminal that is gone is no reason to fail
}
