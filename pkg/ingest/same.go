package ingest

import "sluice/pkg/record"

// Same decides as the ingester does which records are the same, for those who
// look at the tables afterwards: verify, and rebuild.
type Same struct{ same *same }

// NewSame compares rows of c.
func NewSame(c *record.Columns) Same { return Same{newSame(c)} }

// Stored adds a row of the table.
func (s Same) Stored(k *record.Known) { s.same.stored(k) }

// Add adds a row of c, which is not known by its place, and says whether the
// same record was there.
func (s Same) Add(row int) (there bool) { return s.same.add(row) }
