package simulator

import (
	"container/heap"
	"iter"
	"math"
	"time"
)

// Record is a record as an exporter sends it.
type Record struct {
	Partition  int64
	Position   int64
	Key        int64
	Timestamp  int64 // epoch ms
	RecordType string
	ValueType  string
	Intent     string
	JSON       []byte // one object; valid until the next record
}

// Engine is a simulated workflow engine. Not safe for concurrent use.
type Engine struct {
	cfg        Config
	now        int64 // ns since 1970, of the current step
	agenda     agenda
	random     random
	partitions []*partition
	processes  []*process
	called     *definition // called by call activities
	decisions  map[string]*decision

	begun    int // instances, called ones excluded
	underWay int // running ones of them
	pausing  bool

	out  []Record // of the last step, not yet returned
	text []byte   // their JSON
}

func New(cfg Config) *Engine {
	e := &Engine{cfg: cfg.withDefaults()}
	e.random = random(e.cfg.Seed)
	e.now = e.cfg.Start.UnixNano()
	for id := int64(1); id <= int64(e.cfg.Partitions); id++ {
		e.partitions = append(e.partitions, newPartition(e, id, e.cfg.First))
	}
	e.at(0, e.deploy)
	return e
}

// Next returns the next record, in time order over all partitions; false after the last event.
func (e *Engine) Next() (Record, bool) { return e.NextBy(time.Unix(0, math.MaxInt64)) }

// NextBy is Next for records written up to a time. Truth excludes later events.
func (e *Engine) NextBy(then time.Time) (Record, bool) {
	for len(e.out) == 0 {
		if len(e.agenda.steps) == 0 || e.agenda.steps[0].at > then.UnixNano() {
			return Record{}, false
		}
		e.text = e.text[:0]
		step := e.agenda.pop()
		e.now = step.at
		step.do()
	}
	r := e.out[0]
	e.out = e.out[1:]
	return r, true
}

func (e *Engine) All() iter.Seq[Record] {
	return func(yield func(Record) bool) {
		for r, more := e.Next(); more; r, more = e.Next() {
			if !yield(r) {
				return
			}
		}
	}
}

func (e *Engine) ms() int64 { return e.now / int64(time.Millisecond) }

// after schedules a step after a worker's or a user's wait, divided by Haste.
func (e *Engine) after(wait time.Duration, do func()) {
	e.at(int64(float64(wait)/e.cfg.Haste), do)
}

// at schedules a step in this many nanoseconds.
func (e *Engine) at(wait int64, do func()) { e.agenda.push(e.now+wait, do) }

// between draws a duration from a range.
func (e *Engine) between(from, to time.Duration) time.Duration {
	return from + time.Duration(e.random.below(int64(to-from)+1))
}

// beginNext starts an instance, and schedules the next.
func (e *Engine) beginNext() {
	e.pausing = e.underWay >= e.cfg.UnderWay
	if e.pausing {
		return // resumed at the end of an instance
	}
	if e.cfg.Instances > 0 && e.begun == e.cfg.Instances {
		return
	}
	e.begun++
	e.underWay++
	e.begin()
	every := e.cfg.Every
	if !e.cfg.Rush.IsZero() && e.now >= e.cfg.Rush.UnixNano() {
		every = e.cfg.RushEvery
	}
	e.at(int64(every), e.beginNext)
}

// left is called when an instance has no more events: it has ended, or waits forever.
func (e *Engine) left(in *instance) {
	if in.left || in.ParentInstance > 0 {
		return
	}
	in.left = true
	e.underWay--
	if e.pausing {
		e.pausing = false
		e.at(0, e.beginNext)
	}
}

// agenda is a heap of steps by time, and then by order of scheduling.
type agenda struct {
	steps steps
	count uint64
}

type step struct {
	at    int64
	order uint64
	do    func()
}

func (a *agenda) push(at int64, do func()) {
	a.count++
	heap.Push(&a.steps, step{at, a.count, do})
}

func (a *agenda) pop() step { return heap.Pop(&a.steps).(step) }

// steps implements heap.Interface.
type steps []step

func (s steps) Len() int { return len(s) }
func (s steps) Less(i, j int) bool {
	return s[i].at < s[j].at || s[i].at == s[j].at && s[i].order < s[j].order
}
func (s steps) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s *steps) Push(x any)   { *s = append(*s, x.(step)) }

func (s *steps) Pop() any {
	last := len(*s) - 1
	x := (*s)[last]
	(*s)[last] = step{}
	*s = (*s)[:last]
	return x
}

// random is the generator splitmix64: fast and portable.
type random uint64

func (r *random) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (r *random) below(n int64) int64 { return int64(r.next() % uint64(n)) }

// chance is true with this probability per thousand.
func (r *random) chance(perMille int64) bool { return r.below(1000) < perMille }

func pick[T any](r *random, from []T) T { return from[r.below(int64(len(from)))] }
