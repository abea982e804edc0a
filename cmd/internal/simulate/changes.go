package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"sluice/cmd/internal/simulate/oracle"
	"sluice/pkg/change"
	"sluice/pkg/state"
	"sluice/pkg/stream"
)

// patcher is a client that patches one user, and changes a dataset field that others change
// too. Each patch sets another member, so the user must have the members of all acknowledged
// patches.
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
		p.change(ctx)
		rest(ctx, p.random, 20*time.Second)
	}
}

// field is the dataset field that all patchers change, each on the condition that it is as
// they have read it.
var field = change.Target{Table: "table", Field: "field"}

// chain has the applied changes of field by the state that they met.
type chain struct {
	next    map[string]string // id of the change by that of the state
	doubted bool              // a set-back may have lost some
}

// change replaces or deletes the field as pkg/api does, and notes a change that was applied.
func (p *patcher) change(ctx context.Context) {
	a := p.api(p.random.IntN(2))
	if a == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	last, err1 := a.stream.LastChange(ctx, field)
	entries := state.New(a.stream.State)
	now, err2 := entries.Entry(ctx, field)
	if err1 != nil || err2 != nil || last.Unread || now.Place.Before(last.Applied) {
		return // the state is behind
	}
	c, _, err := change.NewFieldPut(field.Table, field.Field, p.user, []byte(`{}`))
	if p.random.IntN(3) == 0 && !now.Deleted {
		c, err = change.NewFieldDelete(field.Table, field.Field, p.user, 0)
	}
	if err != nil {
		p.fail("the api refuses a change of the field: %v", err)
		return
	}
	c.ID, c.Base, c.Expected = fmt.Sprintf("field-%s-%d", p.user, p.random.Uint64()), &now.ID, &last.Seq
	if _, _, err = a.publisher.PublishChange(ctx, c); errors.Is(err, change.ErrStale) {
		p.saw("a conditional change is stale")
	}
	for err == nil && sleep(ctx, 50*time.Millisecond) {
		var e change.Entry
		if e, err = entries.Entry(ctx, field); err != nil {
			return
		}
		ignored, known := e.Outcome(c.ID)
		if known && !ignored {
			p.write(func(*oracle.Notes) {
				if p.chain.next[now.ID] != "" && !p.chain.doubted {
					p.failures = append(p.failures, "two conditional changes of one state were applied")
				}
				p.chain.next[now.ID] = c.ID
			})
		}
		if known {
			return
		}
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
	p.chain.doubted = true
	for n := range p.patches {
		one := &p.patches[n]
		one.doubted = one.doubted || one.ended.IsZero() || !one.ended.Before(since)
	}
}

// entry returns the stored state of a target.
func (h *history) entry(of change.Target) (e change.Entry) {
	entries := h.server.streams["KV_"+stream.StateBucket]
	if m := entries.messages[entries.subjects["$KV."+stream.StateBucket+"."+of.Key()]]; m != nil {
		var err error
		if e, err = change.DecodeEntry(m.data); err != nil {
			h.fail("the entry of %+v is damaged: %v", of, err)
		}
	}
	return e
}

// judge compares the user with the patches, and the field with its last change.
func (p *patcher) judge() {
	if next := p.chain.next[p.entry(field).ID]; next != "" && !p.chain.doubted {
		p.fail("change %s of the field was applied, and is lost", next)
	}
	doc := map[string]any{}
	if e := p.entry(change.Target{User: p.user}); len(e.Doc) > 0 {
		if err := json.Unmarshal(e.Doc, &doc); err != nil {
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
