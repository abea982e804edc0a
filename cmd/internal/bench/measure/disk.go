package measure

import (
	"context"
	"fmt"
	"time"

	"sluice/cmd/internal/parts"
)

// settle waits until no merge runs any more, or the plan's patience has ended.
func (b *bench) settle(ctx context.Context, s *parts.Stage) error {
	for began := time.Now(); time.Since(began) < b.plan.settle; {
		merges, err := s.Query(ctx, "SELECT count() FROM system.merges")
		if err != nil || merges == "0" {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
	return nil
}

// onDisk is the bytes per record of flow.records, and of all tables, when it
// has settled.
func (b *bench) onDisk(ctx context.Context, s *parts.Stage) (records, all float64, err error) {
	if err := b.settle(ctx, s); err != nil {
		return 0, 0, err
	}
	text, err := s.Query(ctx, `SELECT sumIf(bytes_on_disk, table = 'records'), sum(bytes_on_disk), sumIf(rows, table = 'records')
		FROM system.parts WHERE database = 'flow' AND active`)
	if err != nil {
		return 0, 0, err
	}
	var rows float64
	if _, err := fmt.Sscan(text, &records, &all, &rows); err != nil {
		return 0, 0, fmt.Errorf("bytes on disk are %q: %w", text, err)
	}
	return records / rows, all / rows, nil
}
