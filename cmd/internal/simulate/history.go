package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sluice/cmd/internal/simulate/oracle"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

type Options struct {
	Seed  uint64
	Trace bool         // keep the trace
	Log   slog.Handler // of the programs; default none

	// Canary makes the warehouse lose a row, to prove that the comparison finds it.
	Canary bool
}

type Result struct {
	Seed     uint64
	Failures []string // broken promises
	Grants   int      // granted calls
	Virtual  time.Duration
	Sum      uint64 // of the trace
	Trace    []string
	Rare     map[string]int // number of occurrences of each rare state
	Records  int            // posted
}

// history is one run of all programs and clients.
type history struct {
	*driver
	server    *server
	warehouse *warehouse
	log       *slog.Logger

	window time.Duration // deduplication window
	steps  int           // of the server's clock
	busy   time.Duration // time for which clients post
	moves  bool          // sources move to other lanes
	lanes  int
	poison bool // the tables reject some records

	apis      [2]*api
	ingesters [2]*ingester
	operators []*program
	instances int
	posters   []*poster
	patching  []*patcher
	chain     chain        // guarded by notesLock
	held      bool         // no ingester may start
	pending   atomic.Int32 // set-backs in progress
	uncounted bool         // counters may differ from rows: lane states were set back
	running   sync.WaitGroup

	notesLock sync.Mutex
	notes     *oracle.Notes
	failures  []string
}

// epoch is the offset of all clocks from the bubble's, which begins in 2000: records of a
// month before that would have no identity.
const epoch = 26 * 365 * 24 * time.Hour

const (
	busyTime  = 100 * time.Second
	movesTime = 220 * time.Second // of histories that move sources
	drainTime = 15 * time.Minute
)

// Run runs the history of a seed, in a bubble of testing/synctest. settle is
// synctest.Wait.
func Run(o Options, settle func()) Result {
	h := newHistory(o, settle)
	h.open()
	h.disturb()
	posting, leave := context.WithCancel(context.Background())
	defer leave()
	clients := h.clients(posting)
	if h.moves {
		h.operate(clients)
	} else {
		switch random := h.driver.random; random.IntN(3) {
		case 0:
			h.planSetBack()
		case 1:
			h.planDays()
		default:
			if random.IntN(2) == 0 {
				h.plan(time.Duration(random.Int64N(int64(h.busy))), "a lane is reset", h.resetClaimed)
			}
		}
	}
	done := make(chan struct{})
	go func() { clients.Wait(); close(done) }()
	h.driver.run(func() bool { return time.Since(h.began) >= h.busy || h.grants > maxGrants })
	h.heal()
	deadline, drained := time.Now().Add(drainTime), false
	h.driver.run(func() bool {
		drained = isClosed(done) && h.pending.Load() == 0 && h.isDrained()
		return drained || time.Now().After(deadline)
	})
	if !drained {
		h.fail("not drained after %v: clients have ended: %v; %s", drainTime, isClosed(done), h.standing())
	}
	h.judge()
	h.count()
	leave()
	h.end(done)
	posted, _ := h.notes.Count()
	return Result{o.Seed, h.failures, h.grants, time.Since(h.began), h.sum, h.trace, h.rare, posted}
}

// maxGrants bounds the grants before a history heals.
const maxGrants = 6000

func newHistory(o Options, settle func()) *history {
	random := rand.New(rand.NewPCG(o.Seed, 0x5eed))
	h := &history{
		driver: &driver{random: random, began: time.Now(), settle: settle, keep: o.Trace, rare: map[string]int{}, wake: make(chan struct{}, 1)},
		notes:  oracle.NewNotes(), chain: chain{next: map[string]string{}}, log: slog.New(slog.DiscardHandler),
	}
	h.server, h.warehouse = newServer(h.driver), newWarehouse(h.driver)
	if o.Log != nil {
		h.log = slog.New(o.Log)
	}
	h.lanes = 1 + random.IntN(2)
	h.window = []time.Duration{40 * time.Second, 2 * time.Minute, 10 * time.Minute}[random.IntN(3)]
	h.poison = random.IntN(3) == 0
	h.busy = busyTime
	if h.moves = h.lanes > 1 && random.IntN(3) == 0; h.moves {
		h.busy = movesTime
	}
	scale := []int{0, 3, 10, 30}[random.IntN(4)]
	h.rates = rates{silent: scale, lost: scale, late: scale / 2, refused: scale, slow: 2 * scale}
	h.server.skew, h.warehouse.skew = h.clock(), h.clock()
	h.driver.healed = true // until everything is open
	h.warehouse.canary = o.Canary
	return h
}

// open starts all programs and waits until their streams are open.
func (h *history) open() {
	for i := range h.apis {
		h.startAPI(i)
	}
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		for _, a := range h.apis {
			_ = a.stream.Opened(a.ctx)
		}
		for range h.lanes - 1 {
			if _, err := h.apis[0].stream.AddLane(h.apis[0].ctx); err != nil {
				h.fail("add a lane: %v", err)
			}
		}
	}()
	h.driver.run(func() bool { return isClosed(opened) })
	for i := range h.ingesters {
		h.startIngester(i)
	}
	h.driver.healed = false
}

func (h *history) clients(ctx context.Context) *sync.WaitGroup {
	var all sync.WaitGroup
	for i, s := range []style{positioned, positioned, contents, bare, bare, bare} {
		c := &poster{
			history: h, name: fmt.Sprintf("source-%d", i), subject: fmt.Sprintf("engine-%d", i), style: s,
			random: rand.New(rand.NewPCG(h.driver.random.Uint64(), 2)), until: h.began.Add(h.busy), position: map[int]int64{},
		}
		if i > 3 {
			c.subject, c.twin = "team", true
		}
		h.posters = append(h.posters, c)
		all.Go(func() { c.run(ctx) })
	}
	h.patchers(ctx, all.Go)
	return &all
}

// heal ends all faults.
func (h *history) heal() {
	h.note("heal")
	h.healed = true
	h.events = slices.DeleteFunc(h.events, func(e event) bool { return !e.sure })
	h.warehouse.down, h.warehouse.refuses, h.warehouse.short, h.warehouse.strict, h.warehouse.lagging = false, false, false, false, nil
	for _, l := range h.server.streams {
		l.full = false
	}
	h.mu.Lock()
	for _, c := range h.parked {
		if !c.done && c.fate == silent && !c.deserted {
			c.fate = granted
		}
	}
	h.mu.Unlock()
	for i, a := range h.apis {
		if a == nil {
			h.startAPI(i)
		} else {
			a.revive()
		}
	}
	for i, g := range h.ingesters {
		if g == nil {
			h.startIngester(i) // unless an operator holds it
		} else {
			g.revive()
		}
	}
}

func (p *process) revive() {
	p.stands = time.Time{}
	if !p.connected {
		p.setConnected(true)
	}
}

// isDrained reports whether all messages of the lanes are stored.
func (h *history) isDrained() bool {
	for _, c := range h.parked {
		if c.kind == writing && !c.done {
			return false // it may still take effect
		}
	}
	for lane := range h.lanes {
		if state := h.state(lane); state.Done != h.server.streams[stream.LaneName(lane)].last || state.Claim != nil {
			return false
		}
	}
	return h.areApplied()
}

// state returns the stored state of a lane.
func (h *history) state(lane int) flow.LaneState { return h.stateAt("lane." + strconv.Itoa(lane)) }

func (h *history) stateAt(key string) (state flow.LaneState) {
	l := h.server.streams["KV_"+stream.LaneBucket]
	if m := l.messages[l.subjects["$KV."+stream.LaneBucket+"."+key]]; m != nil {
		_ = json.Unmarshal(m.data, &state)
	}
	return state
}

// standing describes lanes and pending calls, for a failure.
func (h *history) standing() string {
	var text []string
	for lane := range h.lanes {
		state := h.state(lane)
		text = append(text, fmt.Sprintf("lane %d ends at %d, done %d, claim %v, owner %s", lane, h.server.streams[stream.LaneName(lane)].last, state.Done, state.Claim, state.Owner))
	}
	for _, c := range h.parked {
		if !c.done && c.kind != waiting {
			text = append(text, fmt.Sprintf("%s %s: %s", c.process.name, c.name, c.fate))
		}
	}
	return strings.Join(text, "; ")
}

func (h *history) judge() {
	var rows, dead []oracle.Record
	due := map[oracle.Record]string{} // a row stored up to there had expired when the next one arrived
	for _, r := range slices.Backward(h.warehouse.rows[records]) {
		one := oracle.Record{Source: r.Source, Number: r.Key}
		if flow.UTCDay(r.storedAt) > due[one] {
			rows = append(rows, one)
		}
		due[one] = dueAt(r.arrived.Add(dueEarly))
	}
	letters := h.server.streams[stream.DeadStream]
	for _, m := range letters.messages {
		r, err := letter(m)
		if err != nil {
			h.fail("a dead letter is damaged: %v", err)
		}
		dead = append(dead, r)
	}
	if verdict := h.notes.Judge(rows, dead); !verdict.OK() {
		h.fail("%s%s", verdict, h.places())
	}
	for _, p := range h.patching {
		p.judge()
	}
	if n, m := len(h.warehouse.rows[records]), len(h.warehouse.rows[counters]); n != m && !h.inDoubt() && !h.uncounted {
		h.fail("%d rows are stored, %d were counted, and no day is named for a recount", n, m)
	}
}

// letter returns the record of a dead letter.
func letter(m *message) (oracle.Record, error) {
	var r struct {
		Key int64 `json:"key"`
	}
	err := json.Unmarshal(m.data, &r)
	return oracle.Record{Source: m.header["Sluice-Source"][0], Number: r.Key}, err
}

// count counts the rare states that are visible in lane states.
func (h *history) count() {
	for lane := range h.lanes {
		state := h.state(lane)
		if state.Totals.Void > 0 {
			h.saw("void entry")
		}
		if state.Totals.Deduplicated > 0 {
			h.saw("deduplicated records")
		}
		if len(state.Recount) > 0 {
			h.saw("uncertain days")
		}
		if state.DedupFrom > 1 && h.server.streams[stream.LaneName(lane)].first > 1 {
			h.saw("a purged lane")
		}
	}
}

// RareStates must all be reached by a long run.
var RareStates = []string{
	"a clock is off by days", "a constraint is newer than stored rows", "a conditional change is stale", "a connection is lost", "a lane halts after its tables were set back", "a lane is reset", "a lane with an open claim is reset", "a purged lane", "a lane halts after it was set back", "a process freezes", "a row expires", "a row of an open claim expires", "a source is moved: done", "a source is moved: abandoned",
	"an api cannot publish", "an api dies", "an engine is reset", "an ingester dies", "an ingester stops", "request answered as a repeat",
	"uncertain days", "days pass", "dead letter: late", "deduplicated records", "entry: answer lost", "entry: late", "an insert is applied after its process died",
	"insert: answer lost", "insert: late", "lane state: answer lost", "lane state: late", "full lanes", "lease: late",
	"move marker: late", "reaggregate", "an insert is rejected", "repeat beyond the duplicate window of NATS", "repeat of an acknowledged request",
	"replicas differ", "request abandoned", "records resent in other requests", "set back: NATS", "set back: dead letters", "set back: everything", "set back: lane states",
	"set back: lanes", "set back: leases", "set back: lists of sources", "set back: one lane", "set back: tables of the warehouse", "set back: the warehouse", "stale read", "takeover during an insert", "the tables are rebuilt", "the clock of the server steps", "the warehouse lacks memory", "insert deduplicated by its token",
	"tokens of an open claim expire", "a view rejects an insert", "views miss an insert", "void entry",
}

// places lists the places of duplicated rows, for a failure.
func (h *history) places() (text string) {
	seen, said := map[oracle.Record]row{}, 0
	for _, r := range h.warehouse.rows[records] {
		name := oracle.Record{Source: r.Source, Number: r.Key}
		if before, twice := seen[name]; twice && said < 3 {
			said++
			text += fmt.Sprintf("\n\t%s/%d came in at %+v and at %+v", r.Source, r.Key, before.at(), r.at())
		}
		seen[name] = r
	}
	return text
}

func (h *history) inDoubt() bool {
	for lane := range h.lanes {
		if len(h.state(lane).Recount) > 0 {
			return true
		}
	}
	return false
}

// end stops all programs and waits for them.
func (h *history) end(clients chan struct{}) {
	ended := make(chan struct{})
	for _, a := range h.apis {
		a.kill()
	}
	for _, g := range h.ingesters {
		if g != nil {
			g.kill()
		}
	}
	for _, o := range h.operators {
		o.kill()
	}
	go func() { h.running.Wait(); <-clients; close(ended) }()
	limit := time.Now().Add(5 * time.Minute)
	h.driver.run(func() bool { return isClosed(ended) || time.Now().After(limit) })
	if !isClosed(ended) {
		h.fail("a process does not end")
	}
}

func (h *history) fail(format string, args ...any) {
	h.notesLock.Lock()
	defer h.notesLock.Unlock()
	if text := fmt.Sprintf(format, args...); !slices.Contains(h.failures, text) {
		h.failures = append(h.failures, text)
	}
}

func (h *history) write(change func(*oracle.Notes)) {
	h.notesLock.Lock()
	defer h.notesLock.Unlock()
	change(h.notes)
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
