package load

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// GeneratorConfig says which records a Generator writes.
type GeneratorConfig struct {
	Seed       uint64        // decides everything but the timestamps; two seeds share no id
	Start      time.Time     // timestamp of the first record; default now
	Step       time.Duration // from one record to the next; default 5µs
	Partitions int           // of the engine; default 5, so that keys on both sides of 2^53 occur
	Only       int           // write the records of this partition alone; default those of all
	Instances  int           // process instances under way at a time; default 1000
	Envelope   Envelope      // what every record says about itself; default as its process does
	After      int64         // the position and key before the first ones of every partition; default by the seed, so that two seeds share no id
}

// Envelope is what records say about themselves beside what they are about.
type Envelope int

// The envelopes there are.
const (
	MixedEnvelopes Envelope = iota // full for some processes, slim for the others
	FullEnvelope                   // partition and position among the members, as exporters send them
	SlimEnvelope                   // an id, and neither partition nor position
)

// Generator writes the records of an engine at work. It is not safe for
// concurrent use.
type Generator struct {
	programs  [][]program // of each process, its versions
	instances []instance  // under way
	homes     []*partition
	random    random
	clock     clock
	total     Totals
	limit     int        // of instances
	latest    *partition // of the latest record
	record    []byte     // of a bulk, the latest

	workers, countries, assignees []string
	failures                      []failureText
}

// partition of the engine: the source of its positions and keys.
type partition struct {
	id       int64
	text     string // id in decimal
	position int64  // of the latest record
	key      int64  // the latest that was given out
}

// instance is a process instance under way.
type instance struct {
	home     *partition
	program  program
	at       int    // next step
	traits   uint64 // random bits that fix its variables
	failure  uint64 // random bits that choose the latest failure
	worker   uint64 // random bits that choose the worker
	keyText  [20]byte
	keyLen   int
	key      int64
	element  int64 // key of the element instance it is in
	job      int64 // key of the job, user task or subscription it is in
	event    int64 // key of the incident, timer or message it is in
	deadline int64 // epoch ms
	retries  int
}

// failureText is a failure as it stands in JSON, cut at its number.
type failureText struct {
	code, before, after string
	number              bool
}

// firstDefinition is the key of the first process that was deployed: processes
// are always deployed on partition 1.
const firstDefinition = 1<<51 + 1

// keysPerSeed is how many keys and positions of a partition belong to one seed.
const keysPerSeed = 1_000_000_000

// NewGenerator compiles the catalog of processes.
func NewGenerator(cfg GeneratorConfig) (*Generator, error) {
	if cfg.Start.IsZero() {
		cfg.Start = time.Now()
	}
	if cfg.Step <= 0 {
		cfg.Step = 5 * time.Microsecond
	}
	if cfg.Partitions <= 0 {
		cfg.Partitions = 5
	}
	if cfg.Instances <= 0 {
		cfg.Instances = 1000
	}
	g := &Generator{
		random:    random(cfg.Seed),
		clock:     newClock(cfg.Start, cfg.Step),
		limit:     cfg.Instances,
		instances: make([]instance, 0, cfg.Instances),
		workers:   workers(), countries: countries(), assignees: assignees(),
		failures: failureTexts(),
	}
	// Engines that have been running for a while: where they are differs by seed.
	first := 1 + int64(g.random.next()%1_000_000)*keysPerSeed
	if cfg.After > 0 {
		first = cfg.After
	}
	from, to := int64(1), int64(cfg.Partitions)
	if cfg.Only > 0 {
		from, to = int64(cfg.Only), int64(cfg.Only)
		g.random += random(cfg.Only) << 32 // or each partition would do the same
	}
	for id := from; id <= to; id++ {
		g.homes = append(g.homes, &partition{id: id, text: strconv.FormatInt(id, 10), position: first, key: id<<51 + first})
	}
	definition := int64(firstDefinition)
	for _, p := range catalog() {
		if cfg.Envelope != MixedEnvelopes {
			p.full = cfg.Envelope == FullEnvelope
		}
		versions := make([]program, p.versions)
		for i := range versions {
			var err error
			if versions[i], err = compileProgram(p, i+1, definition); err != nil {
				return nil, fmt.Errorf("process %s: %w", p.id, err)
			}
			definition++
		}
		g.programs = append(g.programs, versions)
	}
	return g, nil
}

// Totals adds up everything written so far.
func (g *Generator) Totals() Totals { return g.total }

// Append writes the next record, one JSON object, to the end of dst.
func (g *Generator) Append(dst []byte) []byte {
	return g.next(dst, &g.total)
}

// Latest is where the latest record was written; zeros before the first one.
func (g *Generator) Latest() (partition, position int64) {
	if g.latest == nil {
		return 0, 0
	}
	return g.latest.id, g.latest.position
}

// AppendBatch writes the next n records as one JSON array to the end of dst. It
// returns what they add up to and where they are on each partition.
func (g *Generator) AppendBatch(dst []byte, n int) ([]byte, Totals, []Range) {
	dst = append(dst, '[')
	dst, sum, ranges := g.several(dst, n, func(dst []byte, i int, sum *Totals) []byte {
		if i > 0 {
			dst = append(dst, ',')
		}
		return g.next(dst, sum)
	})
	return append(dst, ']'), sum, ranges
}

// appendBulk writes the next n records as a bulk.
func (g *Generator) appendBulk(dst []byte, n int, bulk func([]byte, int64, []byte) []byte) ([]byte, Totals, []Range) {
	return g.several(dst, n, func(dst []byte, _ int, sum *Totals) []byte {
		g.record = g.next(g.record[:0], sum)
		return bulk(dst, g.latest.id, g.record)
	})
}

// several writes n records, and tells what they add up to and where they are.
func (g *Generator) several(dst []byte, n int, write func(dst []byte, i int, sum *Totals) []byte) ([]byte, Totals, []Range) {
	ranges := make([]Range, len(g.homes))
	for i, h := range g.homes {
		ranges[i] = Range{Partition: h.id, First: h.position + 1}
	}
	var sum Totals
	for i := range n {
		dst = write(dst, i, &sum)
	}
	for i, h := range g.homes {
		ranges[i].Last = h.position
	}
	g.total.add(sum)
	return dst, sum, ranges
}

// next plays one step of one of the instances.
func (g *Generator) next(dst []byte, sum *Totals) []byte {
	in := g.choose()
	s := &in.program[in.at]
	for s.chance > 0 && uint32(g.random.next()) >= s.chance {
		in.at += s.skip
		s = &in.program[in.at]
	}
	in.at++
	in.home.position++
	g.latest = in.home
	g.apply(in, s.before)
	key := g.keyOf(in, s.key)
	before := len(dst)
	dst = g.render(dst, s.template, in, key)
	sum.count(s.valueType, key, in.home.position, len(dst)-before)
	g.clock.tick()
	return dst
}

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

func pick[T any](from []T, n uint64) T { return from[n%uint64(len(from))] }
