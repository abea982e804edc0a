package repeats

import "sluice/pkg/flow"

// Known is what a lane knows of the records that are stored.
type Known struct{ k *known }

func NewKnown(limit int) Known { return Known{newKnown(limit)} }

// Turn begins a block.
func (k Known) Turn() { k.k.turn++ }

func (k Known) Learn(source string, partition, day, floor int64) {
	k.k.learn(flow.SourceDay{Source: source, Partition: partition, Day: day}, floor)
}

func (k Known) Has(source string, partition, day int64) bool {
	return k.k.find(flow.SourceDay{Source: source, Partition: partition, Day: day}) != nil
}

func (k Known) Position(source string, partition, day, position int64) (ask bool) {
	return k.k.position(k.k.find(flow.SourceDay{Source: source, Partition: partition, Day: day}), position)
}

func (k Known) Content(source string, day, ts int64, hash uint64) (ask bool) {
	return k.k.content(k.k.find(flow.SourceDay{Source: source, Day: day}), ts, hash)
}

func (k Known) Forget(source string) { k.k.forget(source) }
func (k Known) Memory() int          { return k.k.memory() }
