package dedup

import "sluice/pkg/flow"

// StoredSet is a lane's memory of stored records.
type StoredSet struct{ k *storedSet }

func NewStoredSet(limit int) StoredSet { return StoredSet{newStoredSet(limit)} }

// Turn begins a block.
func (k StoredSet) Turn() { k.k.turn++ }

func (k StoredSet) Learn(source string, partition, day, floor int64) {
	k.k.learn(flow.SourceDay{Source: source, Partition: partition, Day: day}, floor)
}

func (k StoredSet) Has(source string, partition, day int64) bool {
	return k.k.find(flow.SourceDay{Source: source, Partition: partition, Day: day}) != nil
}

func (k StoredSet) Position(source string, partition, day, position int64) (ask bool) {
	return k.k.position(k.k.find(flow.SourceDay{Source: source, Partition: partition, Day: day}), position)
}

func (k StoredSet) Content(source string, day, ts int64, hash uint64) (ask bool) {
	return k.k.content(k.k.find(flow.SourceDay{Source: source, Day: day}), ts, hash)
}

func (k StoredSet) Forget(source string) { k.k.forget(source) }
func (k StoredSet) Memory() int          { return k.k.memory() }
