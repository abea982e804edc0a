package load

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

const (
	jobTimeout    = 5 * 60 * 1000  // ms
	eventLifetime = 60 * 60 * 1000 // ms
)

// choose gives an instance that has a step left, any of those under way or a
// new one.
func (g *Generator) choose() *instance {
	r := g.random.next()
	if n := len(g.instances); n == 0 || n < g.limit && r%32 == 0 {
		g.instances = append(g.instances, instance{})
		return g.begin(&g.instances[n])
	}
	in := &g.instances[r>>8%uint64(len(g.instances))]
	if in.at == len(in.program) {
		return g.begin(in)
	}
	return in
}

// begin makes in a new instance. Most are of the latest version of a process.
func (g *Generator) begin(in *instance) *instance {
	versions := pick(g.programs, g.random.next())
	version := len(versions) - 1
	if r := g.random.next(); r%10 < 3 {
		version = int(r >> 8 % uint64(len(versions)))
	}
	home := pick(g.homes, g.random.next())
	*in = instance{home: home, program: versions[version], traits: g.random.next(), key: home.nextKey()}
	in.keyLen = len(strconv.AppendInt(in.keyText[:0], in.key, 10))
	return in
}

func (p *partition) nextKey() int64 {
	p.key++
	return p.key
}

func (g *Generator) apply(in *instance, e effect) {
	switch e {
	case nothing:
	case newElement:
		in.element = in.home.nextKey()
	case newJob:
		in.job, in.retries, in.worker = in.home.nextKey(), 3, g.random.next()
		in.deadline = g.clock.ms + jobTimeout
	case assign:
		in.deadline = g.clock.ms + jobTimeout
	case fail:
		in.retries, in.failure = in.retries-1, g.random.next()
	case giveUp:
		in.retries, in.failure = 0, g.random.next()
	case newEvent:
		in.event, in.deadline = in.home.nextKey(), g.clock.ms+eventLifetime
	}
}

func (g *Generator) keyOf(in *instance, s subject) int64 {
	switch s {
	case ofInstance:
		return in.key
	case ofElement:
		return in.element
	case ofJob:
		return in.job
	case ofEvent:
		return in.event
	case ofItself:
		return in.home.nextKey()
	default:
		return -1
	}
}

// random is the generator splitmix64: fast, and the same everywhere.
type random uint64

func (r *random) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// clock moves on by a step per record and keeps its milliseconds as text.
type clock struct {
	now, step int64 // ns
	ms        int64
	text      []byte // ms in decimal
}

func newClock(start time.Time, step time.Duration) clock {
	c := clock{now: start.UnixNano(), step: int64(step)}
	c.ms = c.now / 1e6
	c.text = strconv.AppendInt(nil, c.ms, 10)
	return c
}

func (c *clock) tick() {
	c.now += c.step
	if ms := c.now / 1e6; ms != c.ms {
		c.ms = ms
		c.text = strconv.AppendInt(c.text[:0], ms, 10)
	}
}

// failureTexts prepares the failures as they stand inside a JSON string.
func failureTexts() []failureText {
	var texts []failureText
	for _, f := range failures() {
		quoted, _ := json.Marshal(f.message) // a string always has a JSON form
		before, after, number := strings.Cut(string(quoted[1:len(quoted)-1]), "%")
		texts = append(texts, failureText{code: f.code, before: before, after: after, number: number})
	}
	return texts
}
