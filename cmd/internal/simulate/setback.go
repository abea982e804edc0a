package simulate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sluice/cmd/internal/simulate/oracle"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// image is everything that servers keep, as it was at one moment.
type image struct {
	at      time.Time
	streams map[string]*log
	tables  tables
}

func (h *history) image() *image {
	i := &image{at: time.Now(), streams: map[string]*log{}, tables: h.warehouse.tables.clone()}
	for name, l := range h.server.streams {
		i.streams[name] = l.copy()
	}
	return i
}

// scope is what is set back to an image. Streams keep their names and the times at which
// they were created.
type scope struct {
	name    string
	streams func(name string) bool
	rows    bool // the warehouse too
}

func isLane(name string) bool {
	return strings.HasPrefix(name, stream.LanePrefix) && name != stream.DeadStream && name != stream.NoteStream
}

func only(want ...string) func(string) bool {
	return func(name string) bool { return slices.Contains(want, name) }
}

func all(string) bool { return true }

var scopes = []scope{
	{"everything", all, true},
	{"NATS", all, false},
	{"lanes", isLane, false},
	{"one lane", only(stream.LaneName(0)), false},
	{"lane states", only("KV_" + stream.LaneBucket), false},
	{"leases", only("KV_" + stream.LeaseBucket), false},
	{"lists of sources", only("KV_" + stream.SourceBucket), false},
	{"dead letters", only(stream.DeadStream, stream.NoteStream), false},
	{"the warehouse", only(), true},
}

// setBack is one that is planned, or under way.
type setBack struct {
	*history
	scope
	image *image
	alive bool // ingesters run meanwhile

	ends map[int]uint64 // the last unchanged message of each lane
}

// planSetBack plans that something is set back to what it was a while before.
func (h *history) planSetBack() {
	random := h.driver.random
	s := &setBack{history: h, scope: scopes[random.IntN(len(scopes))], alive: random.IntN(3) == 0}
	taken := time.Duration(random.Int64N(int64(h.busy) * 2 / 5))
	since := time.Duration(5+random.IntN(35)) * time.Second
	h.plan(taken, "an image is taken", func() { s.take(since) })
}

// take takes an image. While a piece of a claim is cut, the lane states of an image do not
// fit tables that go on: the lane halts for rows that are missing.
func (s *setBack) take(since time.Duration) {
	if s.resets() && !s.rows {
		for lane := range s.lanes {
			if s.state(lane).Claim != nil {
				s.plan(100*time.Millisecond, "a claim is open", func() { s.take(since) })
				return
			}
		}
	}
	s.image = s.history.image()
	s.plan(since, "an image is brought back", s.begin)
}

// resets says whether lanes or what they rest on are set back, so that an operator has to
// reset them.
func (s *setBack) resets() bool {
	return s.streams(stream.LaneName(0)) || s.streams("KV_"+stream.LaneBucket)
}

// begin stops what the operator stops. Who brings an image of a lane or of lane states
// back stops ingesters first, and waits until ClickHouse has ended what they have sent; or
// the ingesters run, and notice it.
func (s *setBack) begin() {
	s.pending.Add(1)
	if s.resets() && !s.alive {
		s.holdIngesters()
		s.whenStored(s.replace)
		return
	}
	s.replace()
}

// replace brings the image back.
func (s *setBack) replace() {
	s.saw("set back: " + s.name)
	if s.driver.random.IntN(2) == 0 {
		s.restartServer()
	}
	s.ends = map[int]uint64{}
	for lane := range s.lanes {
		s.ends[lane] = s.server.streams[stream.LaneName(lane)].last
	}
	for _, name := range slices.Sorted(maps.Keys(s.image.streams)) {
		if !s.streams(name) {
			continue
		}
		back := s.image.streams[name].copy()
		if name == stream.DeadStream {
			s.doubtLetters(back)
		}
		back.full = s.server.streams[name].full
		s.server.rememberIDs(back)
		s.server.streams[name] = back
	}
	for lane, last := range s.ends {
		s.ends[lane] = min(last, s.server.streams[stream.LaneName(lane)].last)
	}
	if s.rows {
		s.doubtRows()
		s.discard("insert ")
		s.warehouse.tables = s.image.tables.clone()
	}
	s.uncounted = s.uncounted || s.resets()
	if s.streams(stream.LaneName(0)) {
		for _, c := range s.posters {
			s.write(func(n *oracle.Notes) { c.doubt(n, s.image.at) })
		}
	}
	switch {
	case !s.resets():
		s.resend()
	case s.alive:
		s.watch(0)
	default:
		s.reset(slices.Collect(maps.Keys(s.ends))...)
	}
}

// watched is how many seconds the operator looks whether a lane has halted: an insert may
// be under way for a minute.
const watched = 150

// watch resets lanes that have halted for it. What a lane has stored since is unchanged
// too, but for rows of what is gone: then it would have halted.
func (s *setBack) watch(seconds int) {
	halted := s.halted()
	switch {
	case len(halted) > 0:
		s.saw("a lane that was set back halts")
		s.holdIngesters()
		s.whenStored(func() { s.reset(halted...) })
	case seconds == watched:
		s.resend()
	default:
		s.insist(time.Second, "the operator looks", func() { s.watch(seconds + 1) })
	}
}

// halted are the lanes of which an ingester says that they are to be reset.
func (s *setBack) halted() (lanes []int) {
	for _, g := range s.ingesters {
		if g == nil || g.real.Load() == nil {
			continue
		}
		for line := range strings.Lines(fmt.Sprint(g.real.Load().Check(context.Background()))) {
			var lane int
			n, _ := fmt.Sscanf(line, "lane %d is halted", &lane)
			if n == 1 && (strings.Contains(line, "lanes reset") || strings.Contains(line, flow.ErrGap.Error())) && !slices.Contains(lanes, lane) {
				lanes = append(lanes, lane)
			}
		}
	}
	return lanes
}

// whenStored does something once ClickHouse has ended what ingesters have sent that are
// gone.
func (s *setBack) whenStored(do func()) {
	if s.inserting() {
		s.insist(time.Second, "an insert is under way", func() { s.whenStored(do) })
		return
	}
	do()
}

// reset resets lanes, as docs/runbooks/lanes.md says, and watches, or lets ingesters run.
func (s *setBack) reset(lanes ...int) {
	slices.Sort(lanes)
	s.operator("operator", func(ctx context.Context, g *program) error {
		g.sure = true
		if !sleep(ctx, time.Duration(g.uint64()%20_000)*time.Millisecond) {
			return nil
		}
		watch, stop := context.WithCancel(ctx)
		defer stop()
		s.running.Go(func() { _ = g.stream.Run(watch) })
		if err := g.stream.Opened(ctx); err != nil {
			return nil
		}
		states := stream.NewLaneStates(g.stream)
		for _, lane := range lanes {
			for ctx.Err() == nil {
				_, err := states.Reset(ctx, lane, s.ends[lane], 0)
				if err == nil {
					break
				}
				if !errors.Is(err, flow.ErrUnavailable) && !errors.Is(err, flow.ErrNotOwner) {
					s.fail("reset lane %d to %d: %v", lane, s.ends[lane], err)
					return nil
				}
				sleep(ctx, time.Second)
			}
		}
		if ctx.Err() == nil {
			s.insist(0, "lanes are reset", func() {
				s.saw("a lane is reset")
				s.release()
				if s.alive {
					s.watch(0)
				} else {
					s.resend()
				}
			})
			s.nudge()
		}
		return nil
	})
}

// resend lets clients send again what they have sent since the image, or everything when
// rows are gone.
func (s *setBack) resend() {
	since := s.image.at
	if s.rows {
		since = time.Time{}
	}
	if s.streams(stream.LaneName(0)) || s.rows {
		for _, c := range s.posters {
			c.resendFrom(since, s.rows || s.driver.random.IntN(2) == 0) // see docs/reliability.md
		}
	}
	s.pending.Add(-1)
}

// release lets ingesters run.
func (s *setBack) release() {
	s.held = false
	for i := range s.ingesters {
		s.startIngester(i)
	}
}

// holdIngesters kills ingesters, and lets none start.
func (h *history) holdIngesters() {
	h.held = true
	for i, g := range h.ingesters {
		if g != nil {
			h.ingesters[i] = nil
			g.kill()
		}
	}
}

// inserting says whether an insert of a process that is gone may still land.
func (h *history) inserting() bool {
	return slices.ContainsFunc(h.parked, func(c *call) bool {
		return !c.done && c.deserted && c.fate != silent && strings.HasPrefix(c.name, "insert ")
	})
}

// discard lets calls that are on their way to a server end with it.
func (h *history) discard(prefix string) {
	for _, c := range h.parked {
		if !c.done && c.kind == writing && strings.HasPrefix(c.name, "insert ") == (prefix != "") {
			c.fate = silent
		}
	}
}

// restartServer ends every connection to JetStream, and what is on its way.
func (h *history) restartServer() {
	h.discard("")
	for i := range h.apis {
		for k, p := range []*process{h.apiProcess(i), h.ingesterProcess(i)} {
			if p != nil && p.connected {
				p.setConnected(false)
				away := time.Second + time.Duration(k*h.driver.random.IntN(25))*time.Second // lanes are filled beyond their former end meanwhile
				h.plan(away, "a connection is back", func() { p.setConnected(true) })
			}
		}
	}
}

// rememberIDs makes the ids of a log that a server has opened: those of messages it holds.
func (s *server) rememberIDs(l *log) {
	l.ids = map[string]taken{}
	for seq, m := range l.messages {
		if id := m.header["Nats-Msg-Id"]; len(id) > 0 {
			l.ids[id[0]] = taken{seq, m.at}
		}
	}
	s.expire(l)
}

// doubtRows takes records without an identity of their own whose rows are lost for
// acknowledged in vain: only rebuild brings them back.
func (s *setBack) doubtRows() {
	for _, r := range s.warehouse.rows[records][len(s.image.tables.rows[records]):] {
		s.doubtBare(oracle.Record{Source: r.Source, Number: r.Key})
	}
}

// doubtLetters does so with dead letters that are lost.
func (s *setBack) doubtLetters(back *log) {
	for seq, m := range s.server.streams[stream.DeadStream].messages {
		if back.messages[seq] == nil {
			if r, err := letter(m); err == nil {
				s.write(func(n *oracle.Notes) { n.Doubt(r) })
			}
		}
	}
}

// doubtBare does so with a record of a source that sends nothing again.
func (h *history) doubtBare(r oracle.Record) {
	for _, c := range h.posters {
		if c.name == r.Source && c.style == bare {
			h.write(func(n *oracle.Notes) { n.Doubt(r) })
		}
	}
}
