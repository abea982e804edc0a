package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"sluice/cmd/internal/simulate/oracle"
	"sluice/pkg/change"
	"sluice/pkg/stream"
)

// patcher is a client that patches one user. Each patch sets another member, so the user
// must have the members of all acknowledged patches.
type patcher struct {
	*history
	user    string
	random  *rand.Rand
	patches []patch // guarded by the lock of the notes
}

type patch struct {
	ended   time.Time // when it was acknowledged; zero before
	doubted bool      // a set-back may have lost it
}

// run sends patches until the history heals.
func (p *patcher) run(ctx context.Context) {
	for rest(ctx, p.random, time.Second); time.Since(p.began) < p.busy && ctx.Err() == nil; {
		n := 0
		p.write(func(*oracle.Notes) { p.patches = append(p.patches, patch{}); n = len(p.patches) - 1 })
		for tries := 0; tries < 5 && ctx.Err() == nil && !p.patch(ctx, n); tries++ {
			rest(ctx, p.random, 4*time.Second)
		}
		rest(ctx, p.random, 20*time.Second)
	}
}

func member(n int) string { return fmt.Sprint("member", n) }

// patch sends patch n, and reports whether it was acknowledged.
func (p *patcher) patch(ctx context.Context, n int) bool {
	a := p.api(p.random.IntN(2))
	if a == nil {
		return false
	}
	c, _, err := change.NewUserPatch(ctx, p.user, false, fmt.Appendf(nil, `{%q:%d}`, member(n), n), nil)
	if err != nil {
		p.fail("the api refuses a patch of %s: %v", p.user, err)
		return true
	}
	c.ID = fmt.Sprintf("change-%s-%d-%d", p.user, n, p.random.Uint64())
	if _, _, err = a.publisher.PublishChange(ctx, c); err != nil {
		return false
	}
	p.write(func(*oracle.Notes) { p.patches[n].ended = time.Now() })
	return true
}

// doubtSince marks patches that were in flight since a time: they may be lost.
func (p *patcher) doubtSince(since time.Time) {
	for n := range p.patches {
		one := &p.patches[n]
		one.doubted = one.doubted || one.ended.IsZero() || !one.ended.Before(since)
	}
}

// judge compares the user with the patches.
func (p *patcher) judge() {
	doc := map[string]any{}
	users := p.server.streams["KV_"+stream.StateBucket]
	key := change.Target{User: p.user}.Key()
	if m := users.messages[users.subjects["$KV."+stream.StateBucket+"."+key]]; m != nil {
		e, err := change.DecodeEntry(m.data)
		if err == nil {
			err = json.Unmarshal(e.Doc, &doc)
		}
		if err != nil {
			p.fail("the entry of %s is damaged: %v", p.user, err)
		}
	}
	for n, one := range p.patches {
		if doc[member(n)] == nil && !one.ended.IsZero() && !one.doubted {
			p.fail("patch %d of %s was acknowledged, and is lost", n, p.user)
			return
		}
	}
}

// areApplied reports whether all changes in lane 0 are applied.
func (h *history) areApplied() bool {
	done := h.stateAt("changes.0").Done
	for seq, m := range h.server.streams[stream.LaneName(0)].messages {
		if seq > done && strings.HasPrefix(m.subject, stream.ChangePrefix) {
			return false
		}
	}
	return true
}

func (h *history) patchers(ctx context.Context, run func(func())) {
	for i := range 2 {
		p := &patcher{history: h, user: "user-" + strconv.Itoa(i), random: rand.New(rand.NewPCG(h.driver.random.Uint64(), 3))}
		h.patching = append(h.patching, p)
		run(func() { p.run(ctx) })
	}
}
