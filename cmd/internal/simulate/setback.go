package simulate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sluice/cmd/internal/simulate/oracle"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// image is a snapshot of all data of the servers.
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

// scope is the data that is set back to an image. Streams keep their names and creation
// times.
type scope struct {
	name    string
	streams func(name string) bool
	rows    bool // includes the warehouse
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
	{torn, only(), true},
}

// torn is the scope of tables that are set back one by one: the disk lied about fsync.
const torn = "tables of the warehouse"

// setBack is planned or in progress.
type setBack struct {
	*history
	scope
	image *image
	alive bool // ingesters run meanwhile

	ends    map[int]uint64 // the last unchanged message of each lane
	lost    []row          // lost rows of retained messages
	rebuilt int            // times: a dead ingester's checkpoint may land after the first
}

func (h *history) planSetBack() {
	random := h.driver.random
	s := &setBack{history: h, scope: scopes[random.IntN(len(scopes))], alive: random.IntN(3) == 0}
	taken := time.Duration(random.Int64N(int64(h.busy) * 2 / 5))
	since := time.Duration(5+random.IntN(35)) * time.Second
	h.plan(taken, "an image is taken", func() { s.take(since) })
}

// take takes an image. Without the warehouse it waits until no claim is open: the lane
// would halt for the claim's missing rows.
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

// resets reports whether lanes or lane states are set back, so that an operator must reset
// the lanes.
func (s *setBack) resets() bool {
	return s.streams(stream.LaneName(0)) || s.streams("KV_"+stream.LaneBucket)
}

// begin stops the ingesters, and waits until ClickHouse has ended their inserts. Otherwise
// the ingesters run, and must detect the set-back.
func (s *setBack) begin() {
	s.pending.Add(1)
	if (s.resets() || s.rows) && !s.alive {
		s.holdIngesters()
		s.whenStored(s.replace)
		return
	}
	s.replace()
}

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
		if !s.resets() {
			s.lost = s.warehouse.rows[records][len(s.image.tables.rows[records]):]
		}
		s.discard("insert ")
		synced := s.warehouse.tables
		s.warehouse.lagging = nil
		s.warehouse.tables = s.image.tables.clone()
		for table := range views {
			if s.name == torn && (table != sources || !s.alive) && s.driver.random.IntN(2) == 0 { // without its marks an ingester halts
				s.warehouse.rows[table], s.warehouse.tokens[table] = synced.rows[table], synced.tokens[table]
			}
		}
	}
	s.uncounted = s.uncounted || s.resets()
	if s.streams(stream.LaneName(0)) {
		for _, c := range s.posters {
			s.write(func(n *oracle.Notes) { c.doubt(n, s.image.at) })
		}
		for _, p := range s.patching {
			s.write(func(*oracle.Notes) { p.doubtSince(s.image.at) })
		}
	}
	switch {
	case !s.resets() && !s.rows:
		s.resend()
	case s.alive:
		s.watch(0)
	case !s.resets():
		s.rebuild()
	default:
		s.reset(slices.Collect(maps.Keys(s.ends))...)
	}
}

// watched is the number of seconds an operator waits for a lane to halt: an insert may take
// a minute.
const watched = 150

// watch carries out the remedy that a halted lane names: rebuild or reset. Rows that a lane
// stored since are kept; if some were missing, it would halt.
func (s *setBack) watch(seconds int) {
	halted := s.halted("lanes reset", flow.ErrGap.Error())
	behind := s.halted("sluice rebuild", "refill it")
	if s.name == torn && s.rebuilt == 0 { // verify finds more than the claim's rows missing
		behind = append(behind, halted...)
	}
	switch {
	case len(behind) > 0 && s.rebuilt < 2:
		s.saw("a lane halts after its tables were set back")
		s.holdIngesters()
		s.whenStored(s.rebuild)
	case len(behind) > 0: // the message is purged
		s.saw("a lane with lost rows is reset")
		for _, lane := range behind {
			s.ends[lane] = s.server.streams[stream.LaneName(lane)].last
		}
		s.holdIngesters()
		s.reset(behind...)
	case len(halted) > 0:
		s.saw("a lane halts after it was set back")
		s.holdIngesters()
		s.reset(halted...)
	case seconds == watched && s.rows && !s.resets() && s.rebuilt == 0: // no lane had a block since
		s.holdIngesters()
		s.whenStored(s.rebuild)
	case seconds == watched:
		s.resend()
	default:
		s.insist(time.Second, "the operator looks", func() { s.watch(seconds + 1) })
	}
}

// rebuild simulates sluice rebuild and the swap. It copies rows older than the lanes, and
// stores the lanes' messages of their incarnation up to the checkpoints. The ingester
// stores messages that a reset returned to it.
func (s *setBack) rebuild() {
	var open []int
	for lane := range s.lanes {
		if state := s.state(lane); state.Claim != nil && state.Claim.First <= state.Base() {
			open, s.ends[lane] = append(open, lane), state.Done
		}
	}
	if len(open) > 0 { // sluice rebuild refuses
		s.uncounted = true
		slices.Sort(open)
		s.resetLanes(open, s.ends, s.rebuild)
		return
	}
	s.saw("the tables are rebuilt")
	s.rebuilt++
	there, held := map[at]bool{}, map[int]uint64{}
	var rows, left []row
	states := map[int]flow.LaneState{}
	for lane := range s.lanes {
		states[lane], held[lane] = s.state(lane), s.server.streams[stream.LaneName(lane)].first
	}
	add := func(r row, copied bool) {
		state := states[r.lane]
		if there[r.at()] {
			return
		}
		if r.incarnation == state.Incarnation() && r.seq > state.Done {
			left = append(left, r) // the ingester stores it, unless a checkpoint lands now
			return
		}
		if !copied && r.incarnation != state.Incarnation() {
			return
		}
		if !copied && r.seq < held[r.lane] {
			s.doubtBare(oracle.Record{Source: r.Source, Number: r.Key})
			return
		}
		there[r.at()] = true
		rows = append(rows, r)
	}
	for _, r := range s.warehouse.rows[records] {
		add(r, true)
	}
	for _, r := range s.lost {
		add(r, false)
	}
	s.lost = left
	s.warehouse.lagging = nil
	for table := range views {
		s.warehouse.rows[table], s.warehouse.tokens[table] = slices.Clone(rows), map[string]arrival{}
	}
	s.release()
	s.watch(0)
}

// halted returns the lanes that an ingester reports as halted with one of some texts.
func (s *setBack) halted(texts ...string) (lanes []int) {
	for _, g := range s.ingesters {
		if g == nil || g.real.Load() == nil {
			continue
		}
		for line := range strings.Lines(fmt.Sprint(g.real.Load().Check(context.Background()))) {
			var lane int
			n, _ := fmt.Sscanf(line, "lane %d is halted", &lane)
			if n == 0 && !strings.HasPrefix(line, "applying changes is halted") || // applying changes reads lane 0
				!slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(line, text) }) || slices.Contains(lanes, lane) {
				continue
			}
			lanes = append(lanes, lane)
			if _, after, named := strings.Cut(line, "--last "); named { // rows of its claim are missing
				var last uint64
				_, _ = fmt.Sscan(after, &last)
				s.ends[lane], s.uncounted = last, true
			}
		}
	}
	return lanes
}

// reset resets lanes as docs/runbooks/lanes.md says; then it watches, or resends.
func (s *setBack) reset(lanes ...int) {
	slices.Sort(lanes)
	s.resetLanes(lanes, s.ends, func() {
		s.release()
		if s.alive || s.rebuilt > 0 { // another lane may still halt
			s.watch(0)
		} else {
			s.resend()
		}
	})
}

// resend makes clients resend requests: those since the image, or all with the warehouse.
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
	s.insist(10*time.Second, "the operator looks again", s.lookAgain)
}

// lookAgain resets a lane that halts later: a write of a process that was frozen may land
// when the data is back.
func (s *setBack) lookAgain() {
	if len(s.halted("lanes reset", flow.ErrGap.Error())) > 0 {
		s.saw("a write lands after the set-back")
		s.pending.Add(1)
		s.watch(0)
		return
	}
	s.insist(10*time.Second, "the operator looks again", s.lookAgain)
}

func (h *history) discard(prefix string) {
	for _, c := range h.parked {
		if !c.done && c.kind == writing && strings.HasPrefix(c.name, "insert ") == (prefix != "") {
			c.fate = silent
		}
	}
}

// restartServer ends every connection to JetStream and its calls in flight.
func (h *history) restartServer() {
	h.discard("")
	for i := range h.apis {
		for k, p := range []*process{h.apiProcess(i), h.ingesterProcess(i)} {
			if p != nil && p.connected {
				p.setConnected(false)
				away := time.Second + time.Duration(k*h.driver.random.IntN(25))*time.Second // meanwhile lanes grow beyond their former end
				h.plan(away, "a connection is back", func() { p.setConnected(true) })
			}
		}
	}
}

// rememberIDs rebuilds the ids of a log from its messages, as a starting server does.
func (s *server) rememberIDs(l *log) {
	l.ids = map[string]taken{}
	for seq, m := range l.messages {
		if id := m.header["Nats-Msg-Id"]; len(id) > 0 {
			l.ids[id[0]] = taken{seq, m.at}
		}
	}
	s.expire(l)
}

// doubtLetters doubts the records of lost dead letters.
func (s *setBack) doubtLetters(back *log) {
	for seq, m := range s.server.streams[stream.DeadStream].messages {
		if back.messages[seq] == nil {
			if r, err := letter(m); err == nil {
				s.write(func(n *oracle.Notes) { n.Doubt(r) })
			}
		}
	}
}

// doubtBare doubts a record if its source resends nothing.
func (h *history) doubtBare(r oracle.Record) {
	for _, c := range h.posters {
		if c.name == r.Source && c.style == bare {
			h.write(func(n *oracle.Notes) { n.Doubt(r) })
		}
	}
}
