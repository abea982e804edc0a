package load

import (
	"strconv"
	"time"

	"sluice/pkg/load/simulator"
)

// Source is where records come from: a *Generator, or a *simulator.Engine.
type Source interface {
	// Next gives the next record, whose JSON is valid until the one after it; false
	// when there are no more.
	Next() (simulator.Record, bool)
}

// GeneratorConfig says which records a Generator writes.
type GeneratorConfig struct {
	Seed     uint64        // decides positions and keys: two seeds share no id
	Start    time.Time     // timestamp of the first record; default now
	Step     time.Duration // from one record to the next; default 5µs
	Envelope Envelope      // what every record says about itself; default as its partition does
	After    int64         // the position and key before the first ones of every partition; default by the seed
}

// Envelope is what records say about themselves beside what they are about.
type Envelope int

// The envelopes there are.
const (
	MixedEnvelopes Envelope = iota // full on partitions 1, 3 and 5, slim on the others
	FullEnvelope                   // partition and position among the members, as exporters send them
	SlimEnvelope                   // an id, and neither partition nor position
)

// Generator writes the records of an engine at work, evenly and without end: those of
// a block, again and again. The same config gives the same bytes. It is not safe for
// concurrent use.
type Generator struct {
	block     *block
	at        int   // next record of the block
	shift     int64 // of keys, in this turn of the block
	positions [enginePartitions + 1]int64
	now, step int64 // ns
	text      []byte
}

// keysPerSeed is how many keys and positions of a partition belong to one seed.
const keysPerSeed = 1_000_000_000

// NewGenerator makes a Generator.
func NewGenerator(cfg GeneratorConfig) *Generator {
	if cfg.Start.IsZero() {
		cfg.Start = time.Now()
	}
	if cfg.Step <= 0 {
		cfg.Step = 5 * time.Microsecond
	}
	first := cfg.After
	if first <= 0 { // engines that have been running for a while: where they are differs by seed
		first = 1 + int64(mix(cfg.Seed)%1_000_000)*keysPerSeed
	}
	g := &Generator{block: blocks[cfg.Envelope](), shift: first, now: cfg.Start.UnixNano(), step: int64(cfg.Step)}
	for p := range g.positions {
		g.positions[p] = first
	}
	return g
}

// mix scatters seeds (splitmix64).
func mix(seed uint64) uint64 {
	z := seed + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Next writes the next record. There is always one.
func (g *Generator) Next() (simulator.Record, bool) {
	t := g.template()
	r := t.Record
	g.positions[t.Partition]++
	r.Position = g.positions[t.Partition]
	r.Timestamp = g.now / int64(time.Millisecond)
	g.now += g.step
	text, from := g.text[:0], 0
	for _, h := range t.holes {
		text = append(text, t.text[from:h.at]...)
		from = h.at
		n := h.by
		switch h.number {
		case ofPartition:
			n = r.Partition
		case ofPosition:
			n += r.Position
		case ofKey:
			n += g.shift
		case ofTime:
			n += r.Timestamp
		}
		text = strconv.AppendInt(text, n, 10)
	}
	g.text = append(text, t.text[from:]...)
	r.JSON = g.text
	if t.shifted {
		r.Key += g.shift
	}
	return r, true
}

// template is the next one of the block, which begins anew behind its last.
func (g *Generator) template() *template {
	if g.at == len(g.block.records) {
		g.at = 0
		g.shift += g.block.keys
	}
	t := &g.block.records[g.at]
	g.at++
	return t
}

// AppendBatch writes the next n records of a source as one JSON array to the end of
// dst, fewer where it ends. It returns what they add up to.
func AppendBatch(dst []byte, s Source, n int) ([]byte, Totals) {
	var sum Totals
	dst = append(dst, '[')
	for i := range n {
		r, more := s.Next()
		if !more {
			break
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, r.JSON...)
		sum.count(r)
	}
	return append(dst, ']'), sum
}
