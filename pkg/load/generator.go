package load

import (
	"strconv"
	"time"

	"sluice/pkg/load/simulator"
)

// Source yields records: a *Generator or a *simulator.Engine.
type Source interface {
	// Next returns the next record, whose JSON is valid until the next call; false at the
	// end.
	Next() (simulator.Record, bool)
}

// GeneratorConfig configures a Generator.
type GeneratorConfig struct {
	Seed     uint64        // decides positions and keys: two seeds share no id
	Start    time.Time     // timestamp of the first record; default now
	Step     time.Duration // from one record to the next; default 5µs
	Envelope Envelope      // form of the records; default by partition
	After    int64         // position and key before the first of every partition; default by the seed
}

// Envelope is the form in which records carry id, partition, and position.
type Envelope int

const (
	MixedEnvelopes Envelope = iota // full on partitions 1, 3 and 5, slim on the others
	FullEnvelope                   // partition and position among the members, as exporters send them
	SlimEnvelope                   // an id, and neither partition nor position
)

// Generator repeats the records of a block evenly and without end. The same config gives
// the same bytes. Not safe for concurrent use.
type Generator struct {
	block     *block
	at        int   // next record of the block
	shift     int64 // added to keys in this pass over the block
	positions [enginePartitions + 1]int64
	now, step int64 // ns
	text      []byte
}

// keysPerSeed is the number of keys and positions per seed and partition.
const keysPerSeed = 1_000_000_000

func NewGenerator(cfg GeneratorConfig) *Generator {
	if cfg.Start.IsZero() {
		cfg.Start = time.Now()
	}
	if cfg.Step <= 0 {
		cfg.Step = 5 * time.Microsecond
	}
	first := cfg.After
	if first <= 0 { // an engine that has run for a time that depends on the seed
		first = 1 + int64(mix(cfg.Seed)%1_000_000)*keysPerSeed
	}
	g := &Generator{block: blocks[cfg.Envelope](), shift: first, now: cfg.Start.UnixNano(), step: int64(cfg.Step)}
	for p := range g.positions {
		g.positions[p] = first
	}
	return g
}

// mix hashes seeds (splitmix64).
func mix(seed uint64) uint64 {
	z := seed + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Next returns the next record. There is no end.
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

// template returns the next template of the block, cyclically.
func (g *Generator) template() *template {
	if g.at == len(g.block.records) {
		g.at = 0
		g.shift += g.block.keys
	}
	t := &g.block.records[g.at]
	g.at++
	return t
}

// AppendBatch appends the next n records of a source, fewer at its end, as one JSON array,
// and returns their totals.
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
