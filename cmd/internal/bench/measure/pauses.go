package measure

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// pauseLeast is what counts as a pause: more than the turn of another thread.
const pauseLeast = 3 * time.Millisecond

// Pauses are the times in which threads that had nothing to wait for did not
// run. On a machine that does nothing else the cause lies below its programs,
// in the kernel or in a host that shares its cores; which, this does not tell.
type Pauses struct {
	Watched time.Duration // by each core
	Count   int
	Sum     time.Duration // of all cores
	Longest time.Duration
}

// pausesOf keeps every core busy with looking at the clock, until ctx ends.
func pausesOf(ctx context.Context, length time.Duration) Pauses {
	all := Pauses{Watched: length}
	var mu sync.Mutex
	var threads sync.WaitGroup
	for range runtime.NumCPU() {
		threads.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			seen := gaps(ctx, time.Now, length)
			mu.Lock()
			defer mu.Unlock()
			for _, gap := range seen {
				all.Count++
				all.Sum += gap
				all.Longest = max(all.Longest, gap)
			}
		})
	}
	threads.Wait()
	return all
}

// gaps are the times of at least pauseLeast between two looks at the clock.
func gaps(ctx context.Context, now func() time.Time, length time.Duration) (seen []time.Duration) {
	began := now()
	for last := began; last.Sub(began) < length && ctx.Err() == nil; {
		t := now()
		if gap := t.Sub(last); gap >= pauseLeast {
			seen = append(seen, gap)
		}
		last = t
	}
	return seen
}

func (p Pauses) String() string {
	if p.Count == 0 {
		return "none"
	}
	return fmt.Sprintf("%d, together %s ms, the longest %s ms", p.Count, ms(p.Sum), ms(p.Longest))
}
