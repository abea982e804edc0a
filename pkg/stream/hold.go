package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice/pkg/record"
)

// holdTries is how often a position is read again that moves while it is
// written: whoever works on the lane moves it with every block.
const holdTries = 100

// Hold asks whoever works on a lane to claim nothing new until then, or until
// Release, and returns the position with the hold in it. A block that is
// claimed is stored and recorded as done first. The error says so when somebody
// else holds the lane.
//
// Whoever dies holding a lane leaves it to the clock.
func (p *Positions) Hold(ctx context.Context, lane int, by string, until time.Time) (record.Position, error) {
	return p.rewrite(ctx, lane, func(pos *record.Position) error {
		if pos.Held(time.Now()) && pos.Hold.By != by {
			return fmt.Errorf("lane %d is held by %s until %s", lane, pos.Hold.By, time.UnixMilli(pos.Hold.Until).UTC().Format(time.RFC3339))
		}
		pos.Hold = &record.Hold{By: by, Until: until.UnixMilli()}
		return nil
	})
}

// Release ends a hold, unless it is somebody else's.
func (p *Positions) Release(ctx context.Context, lane int, by string) error {
	_, err := p.rewrite(ctx, lane, func(pos *record.Position) error {
		if pos.Hold == nil || pos.Hold.By != by {
			return errAsItIs
		}
		pos.Hold = nil
		return nil
	})
	return err
}

// errAsItIs says that a position needs no change.
var errAsItIs = errors.New("as it is")

// rewrite changes the position of a lane, whoever else moves it.
func (p *Positions) rewrite(ctx context.Context, lane int, change func(*record.Position) error) (record.Position, error) {
	for try := 1; ; try++ {
		pos, err := p.Read(ctx, lane)
		if err != nil {
			return pos, err
		}
		if err := change(&pos); errors.Is(err, errAsItIs) {
			return pos, nil
		} else if err != nil {
			return pos, err
		}
		next, err := p.Swap(ctx, lane, pos)
		if err == nil || try == holdTries || !errors.Is(err, record.ErrNotOwner) {
			return next, err
		}
	}
}
