package lease

import (
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// balance takes and releases lanes until this instance has its share.
func (r *holder) balance(ctx context.Context) {
	if !r.known || r.leaving {
		return
	}
	lanes := r.cfg.Lanes()
	members, holders := r.census(lanes)
	r.others.Store(len(members) > 1)
	if r.isResting() {
		if len(members) > 1 {
			return
		}
		r.resting = time.Time{} // no other instance is left
	}
	low, high := len(lanes)/len(members), (len(lanes)+len(members)-1)/len(members)
	mine := 0
	for _, held := range r.held {
		if !held.giving && !held.lost {
			mine++
		}
	}
	if slices.ContainsFunc(members, func(m string) bool { return m != r.cfg.Instance && holders[m] < low }) {
		// Another instance has too few: release one lane, then check again.
		high = max(low, min(high, mine-1))
	}
	for ; mine > high; mine-- {
		r.give()
	}
	// Instances start at different lanes, to avoid conflicts. The loop is bounded, so that
	// renewals and the other instances' leases are handled in between.
	begun := time.Now()
	for i := range lanes {
		if mine >= high || time.Since(begun) > beat/2 {
			return
		}
		if r.take(ctx, lanes[(r.first(len(lanes))+i)%len(lanes)]) {
			mine++
		}
	}
}

// first is the index of the lane that this instance tries first.
func (r *holder) first(lanes int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(r.cfg.Instance))
	return int(h.Sum32() % uint32(lanes))
}

// census returns the present instances, this one included, and the number of lanes that
// each holds.
func (r *holder) census(lanes []int) (members []string, holders map[string]int) {
	members, holders = []string{r.cfg.Instance}, map[string]int{}
	for key, s := range r.seen {
		if name, ok := strings.CutPrefix(key, memberPrefix); ok && name != r.cfg.Instance && time.Since(s.at) < r.cfg.TTL {
			members = append(members, name)
		}
	}
	for _, lane := range lanes {
		if s, ok := r.seen[lanePrefix+strconv.Itoa(lane)]; ok && time.Since(s.at) < r.cfg.TTL {
			holders[s.owner]++
		}
	}
	return members, holders
}

// give ends the work on the lane of the highest number.
func (r *holder) give() {
	high := -1
	for lane, held := range r.held {
		if !held.giving && !held.lost {
			high = max(high, lane)
		}
	}
	r.log.Info("releasing a lane to another instance", "lane", high)
	r.held[high].giving = true
	r.held[high].cancel()
}

// take acquires the lease of a free lane, and reports whether it did.
func (r *holder) take(ctx context.Context, lane int) bool {
	key := lanePrefix + strconv.Itoa(lane)
	s, ok := r.seen[key]
	if ok && s.owner != r.cfg.Instance && time.Since(s.at) < r.cfg.TTL {
		return false
	}
	if r.held[lane] != nil || time.Now().Before(r.cooling[lane]) {
		return false
	}
	begun := time.Now()
	asking, cancel := context.WithTimeout(ctx, beat)
	defer cancel()
	revision, err := r.bucket.Create(asking, key, []byte(r.cfg.Instance))
	if errors.Is(err, jetstream.ErrKeyExists) && ok && time.Since(s.at) >= r.cfg.TTL+beat {
		// It was not renewed for longer than its holder works without renewal, or the
		// revision has changed.
		revision, err = r.bucket.Update(asking, key, []byte(r.cfg.Instance), s.revision)
	}
	held := &lease{}
	var working context.Context
	working, held.cancel = context.WithCancel(ctx)
	held.until = time.AfterFunc(r.fence(), held.cancel)
	switch {
	case err == nil:
		r.renewed(held, revision, begun)
	case !r.ours(asking, lane, held, begun):
		held.until.Stop()
		held.cancel()
		return false // another instance was first, or the entry is not expired yet
	}
	r.held[lane] = held
	r.m.held.Set(float64(len(r.held)))
	r.log.Info("lease taken", "lane", lane)
	go func() { r.ended <- ended{lane, r.work(working, lane)} }()
	return true
}
