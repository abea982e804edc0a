package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// driver grants the calls of all processes, one at a time, as the seed decides. It owns the
// servers: every effect on them happens in its goroutine.
type driver struct {
	random *rand.Rand
	began  time.Time
	settle func()        // waits until all goroutines are idle
	rates  rates         // of faults
	healed bool          // no more faults
	days   time.Duration // passed days; added to all clocks
	events []event       // pending, by time
	keep   bool          // keep the trace, not only its sum
	trace  []string      // of granted calls
	sum    uint64        // of the trace
	grants int           // so far
	rare   map[string]int
	rares  sync.Mutex // guards rare

	mu     sync.Mutex
	parked []*call
	wake   chan struct{} // holds one after a change
}

type event struct {
	at   time.Time
	name string
	do   func()
	sure bool // happens also after healing
}

// rates are the fault rates of calls, per thousand.
type rates struct {
	silent, lost, late, refused, slow int
}

// kind determines the possible faults of a call.
type kind int

const (
	reading kind = iota // no effect
	writing             // may take effect without an answer, or late
	waiting             // for a message, without limit
)

type fate int

const (
	granted fate = iota
	silent       // no effect, no answer
	lost         // takes effect, but the answer is lost
	late         // takes effect after its caller has given up
	refused      // rejected
)

func (f fate) String() string {
	return [...]string{"granted", "silent", "answer lost", "late", "refused"}[f]
}

type call struct {
	process *process
	name    string
	caller  uint64 // hash of its stack
	number  int    // among the calls of its process
	kind    kind
	apply   func() (any, error)
	refuse  func() error
	ready   func() bool // for waiting
	soon    func() bool // for waiting: the message has arrived
	answer  chan outcome

	met      bool // fate and due are decided
	due      time.Time
	fate     fate
	deserted bool // the caller has given up
	done     bool
}

type outcome struct {
	value any
	err   error
}

var errDead = errors.New("this process is dead")

// do parks a call until the driver grants it, or ctx ends.
func (p *process) do(ctx context.Context, c *call) (any, error) {
	d := p.driver
	c.process, c.answer, c.caller = p, make(chan outcome, 1), caller()
	d.mu.Lock()
	if p.gone {
		d.mu.Unlock()
		return nil, errDead
	}
	p.calls++
	c.number = p.calls
	d.parked = append(d.parked, c)
	d.mu.Unlock()
	d.nudge()
	select {
	case o := <-c.answer:
		return o.value, o.err
	case <-ctx.Done():
	}
	d.mu.Lock()
	c.deserted = true
	d.mu.Unlock()
	d.nudge()
	select {
	case o := <-c.answer: // granted and ended together
		return o.value, o.err
	default:
		return nil, ctx.Err()
	}
}

// clock draws the offset of a clock: up to minutes, and for every third up to ten days.
func (d *driver) clock() time.Duration {
	off := time.Duration(d.random.IntN(600)-300) * time.Second
	if d.random.IntN(3) == 0 {
		d.saw("a clock is off by days")
		off *= 2880
	}
	return epoch + off
}

func (d *driver) nudge() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *driver) run(over func() bool) {
	for {
		if d.settle(); over() {
			return
		}
		now := time.Now()
		for len(d.events) > 0 && !d.events[0].at.After(now) {
			e := d.events[0]
			d.events = d.events[1:]
			d.note("event %s", e.name)
			e.do()
			d.settle()
		}
		d.meet(now)
		if c := d.next(now); c != nil {
			d.grant(c)
			continue
		}
		d.sleep(now)
	}
}

// meet decides the fate of new calls, and removes ended ones.
func (d *driver) meet(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.parked = slices.DeleteFunc(d.parked, func(c *call) bool {
		if c.done {
			return true
		}
		// A call in flight may arrive after its sender has died.
		return c.deserted && (c.kind != writing || !c.met || c.fate == silent)
	})
	slices.SortStableFunc(d.parked, func(a, b *call) int {
		return cmp.Or(cmp.Compare(a.process.name, b.process.name), cmp.Compare(a.name, b.name), cmp.Compare(a.caller, b.caller), cmp.Compare(a.number, b.number))
	})
	for _, c := range d.parked {
		if !c.met {
			c.met = true
			c.fate, c.due = d.decide(c, now)
		}
	}
}

func (d *driver) decide(c *call, now time.Time) (fate, time.Time) {
	if c.soon != nil && c.soon() {
		return granted, now
	}
	took := time.Duration(d.random.IntN(8_000_000)) // in nanoseconds: no two calls return at one instant
	if d.healed || c.process.sure {
		return granted, now.Add(took)
	}
	if d.random.IntN(1000) < d.rates.slow {
		took += time.Duration(d.random.Int64N(int64(6 * time.Second)))
	}
	if c.kind == waiting {
		return granted, now.Add(took)
	}
	if now.Before(c.process.stalls) && strings.HasPrefix(c.name, "publish flow.") {
		if d.random.IntN(2) == 0 {
			return silent, now
		}
		return late, c.process.stalls.Add(time.Duration(d.random.Int64N(int64(30 * time.Second))))
	}
	draw := d.random.IntN(1000)
	for _, of := range []struct {
		fate fate
		rate int
	}{{silent, d.rates.silent}, {refused, d.rates.refused}, {lost, d.rates.lost}, {late, d.rates.late}} {
		if draw -= of.rate; draw < 0 {
			if of.fate == refused && c.refuse == nil || of.fate >= lost && of.fate <= late && c.kind != writing {
				break
			}
			if of.fate == late {
				took += time.Duration(d.random.Int64N(int64(time.Minute)))
			}
			return of.fate, now.Add(took)
		}
	}
	return granted, now.Add(took)
}

// next draws the call to grant from those that are due.
func (d *driver) next(now time.Time) *call {
	d.mu.Lock()
	defer d.mu.Unlock()
	var due []*call
	for _, c := range d.parked {
		if !c.due.After(now) && !c.process.still(now) && c.fate != silent && (c.ready == nil || c.ready()) {
			due = append(due, c)
		}
	}
	if len(due) == 0 {
		return nil
	}
	return due[d.random.IntN(len(due))]
}

func (d *driver) grant(c *call) {
	c.done = true
	d.grants++
	var o outcome
	if c.fate == refused {
		o.err = c.refuse()
	} else {
		o.value, o.err = c.apply()
	}
	d.note("%s %s: %s %v", c.process.name, c.name, c.fate, o.err)
	if o.err == nil && (c.fate == late || c.fate == lost) {
		d.saw(what(c.name) + ": " + c.fate.String())
	}
	if c.fate == granted || c.fate == refused {
		c.answer <- o
	}
}

// what returns the kind of write of a call.
func what(name string) string {
	for _, w := range []struct{ has, is string }{
		{"insert ", "insert"}, {".record ", "entry"}, {".move ", "move marker"}, {".change.", "change"}, {"$KV.flow_state.", "user"}, {"$KV.flow_lanes.changes", "checkpoint of changes"}, {"$KV.flow_lanes.lane", "lane state"},
		{"$KV.flow_leases.", "lease"}, {"$KV.flow_sources.", "list of a source"}, {"flow.dead.", "dead letter"},
	} {
		if strings.Contains(name, w.has) {
			return w.is
		}
	}
	return "other"
}

// sleep waits until a call or an event is due, or a new one arrives.
func (d *driver) sleep(now time.Time) {
	until := now.Add(time.Second)
	if len(d.events) > 0 && d.events[0].at.Before(until) {
		until = d.events[0].at
	}
	d.mu.Lock()
	for _, c := range d.parked {
		if due := c.process.until(c.due); c.fate != silent && due.After(now) && due.Before(until) {
			until = due
		}
	}
	d.mu.Unlock()
	timer := time.NewTimer(until.Sub(now))
	defer timer.Stop()
	select {
	case <-d.wake:
	case <-timer.C:
	}
}

// plan adds an event, unless the history heals earlier.
func (d *driver) plan(after time.Duration, name string, do func()) {
	d.add(event{time.Now().Add(after), name, do, false})
}

// insist adds an event that happens also after healing.
func (d *driver) insist(after time.Duration, name string, do func()) {
	d.add(event{time.Now().Add(after), name, do, true})
}

func (d *driver) add(e event) {
	at, _ := slices.BinarySearchFunc(d.events, e, func(a, b event) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return -1 // after events of the same time
	})
	d.events = slices.Insert(d.events, at, e)
}

func (d *driver) note(format string, args ...any) {
	line := fmt.Sprintf("%9.3f ", time.Since(d.began).Seconds()) + fmt.Sprintf(format, args...)
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d", d.sum)
	_, _ = h.Write([]byte(line))
	d.sum = h.Sum64()
	if d.keep {
		d.trace = append(d.trace, line)
	}
}

func (d *driver) saw(state string) {
	d.rares.Lock()
	defer d.rares.Unlock()
	d.rare[state]++
}

// process is one program. The driver's lock guards its fields.
type process struct {
	*driver
	name   string
	calls  int
	gone   bool
	stands time.Time // paused until then
	stalls time.Time // publishes to lanes have no effect until then, and some land late

	connected bool
	sure      bool                 // calls have no faults
	losses    map[*func()]struct{} // callbacks for a lost connection
	seed      uint64               // of its random source
	randoms   sync.Mutex
	drawn     map[uint64]uint64 // count of numbers by caller; guarded by randoms
	skew      time.Duration     // of its clock
	cancel    context.CancelFunc
}

func (p *process) still(now time.Time) bool { return now.Before(p.stands) }

// until returns the time at which a due call may be granted.
func (p *process) until(due time.Time) time.Time {
	if due.Before(p.stands) {
		return p.stands
	}
	return due
}

// now returns the time of the process's clock.
func (p *process) now() time.Time { return time.Now().Add(p.skew + p.days) }

// uint64 is the process's random source. Each caller has its own sequence, so that it does
// not depend on the scheduler. Two goroutines may pause at one instant, in any order: they
// draw one number.
func (p *process) uint64() uint64 {
	by := caller()
	pc, _, _, _ := runtime.Caller(1)
	if name := runtime.FuncForPC(pc).Name(); strings.HasSuffix(name, ".pause") || strings.HasSuffix(name, ".jitter") {
		return rand.NewPCG(p.seed^by, uint64(time.Since(p.began))).Uint64()
	}
	p.randoms.Lock()
	defer p.randoms.Unlock()
	p.drawn[by]++
	return rand.NewPCG(p.seed^by, p.drawn[by]).Uint64()
}

// frames caches function and line by program counter.
var frames sync.Map

// caller hashes the stack of the caller's caller.
func caller() uint64 {
	var stack [32]uintptr
	sum := fnv.New64a()
	for _, pc := range stack[:runtime.Callers(3, stack[:])] {
		name, known := frames.Load(pc)
		if !known {
			f := runtime.FuncForPC(pc)
			_, line := f.FileLine(pc)
			name = fmt.Appendf(nil, "%s:%d ", f.Name(), line)
			frames.Store(pc, name)
		}
		_, _ = sum.Write(name.([]byte))
	}
	return sum.Sum64()
}

// kill ends a process: later calls have no effect, but calls in flight may arrive.
func (p *process) kill() {
	p.mu.Lock()
	p.gone = true
	for _, c := range p.parked {
		if c.process != p || c.done || c.deserted {
			continue
		}
		c.deserted = true
		c.answer <- outcome{nil, errDead}
		if c.fate == granted && c.kind == writing {
			c.fate = lost
		}
	}
	p.mu.Unlock()
	p.cancel()
}
