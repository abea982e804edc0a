package simulate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/record"
)

// warehouse is a simulated ClickHouse, owned by the driver: the table of records, a view
// that feeds the marks of sources, and one that feeds counters.
type warehouse struct {
	days    *time.Duration // the driver's
	skew    time.Duration  // of its clock
	down    bool           // no connection can be made
	refuses bool           // the view of counters rejects every insert
	short   bool           // of memory: it rejects large inserts
	strict  bool           // a constraint was added
	lagging *tables        // of a replica that lags: inserts wait for it
	canary  bool           // loses one row

	tables
	owner map[string]string // process that first inserted a token
	ended map[at]bool       // rows that were kept until they expired

	counted time.Time // when parts were last counted
}

// tables are the data of a warehouse.
type tables struct {
	rows   [views][]row // by table
	tokens [views]map[string]arrival
	parts  uint64    // number of inserted parts
	counts []partsAt // history of parts
}

func (t tables) clone() tables {
	for i := range t.rows {
		t.rows[i], t.tokens[i] = slices.Clone(t.rows[i]), maps.Clone(t.tokens[i])
	}
	t.counts = slices.Clone(t.counts)
	return t
}

// The tables: records, and those that views feed.
const (
	records  = iota
	sources  // highest positions
	counters // rows by minute
	views
)

// fewRows is the maximum size of an insert when memory is short.
const fewRows = 3

// window is the deduplication window of a table, in parts.
const window = 100_000

type arrival struct{ part uint64 }

type partsAt struct {
	at    time.Time
	parts uint64
}

type row struct {
	flow.Identity
	lane        int
	incarnation uint64
	seq         uint64
	index       int
	storedAt    int64
	arrived     time.Time // by the clock of the warehouse
}

func newWarehouse(d *driver) *warehouse {
	w := &warehouse{days: &d.days, owner: map[string]string{}, ended: map[at]bool{}}
	for i := range w.tokens {
		w.tokens[i] = map[string]arrival{}
	}
	return w
}

func (w *warehouse) now() time.Time { return time.Now().Add(w.skew + *w.days) }

// keptDays is the retention of rows, in days.
const keptDays = 2

// dueEarly is how much earlier a program takes a row for expired.
const dueEarly = 10 * time.Minute

// dueAt returns the last stored day that has expired at a time of the warehouse.
func dueAt(clock time.Time) string { return flow.UTCDay(clock.AddDate(0, 0, -keptDays-1).UnixMilli()) }

// expire merges expired rows away. It returns those of records, and those that expired too
// early: a claim may wait for an hour. A row that was kept before, until it expired during
// a claim, is stored again only to expire.
func (w *warehouse) expire() (gone, early []row) {
	due := dueAt(w.now())
	for _, table := range []int{records, counters} {
		var kept []row
		for _, r := range w.rows[table] {
			switch {
			case flow.UTCDay(r.storedAt) > due:
				kept = append(kept, r)
			case table == records && r.arrived.Sub(time.UnixMilli(r.storedAt)) > 2*time.Hour && !w.ended[r.at()]:
				early = append(early, r)
			case table == records:
				gone = append(gone, r)
				w.ended[r.at()] = true
			}
		}
		w.rows[table] = kept
	}
	return gone, early
}

type client struct {
	*process
	*warehouse
}

var (
	_ ingest.Tables = client{}
	_ ingest.Index  = client{}
)

var (
	errAway    = errors.New("the simulated warehouse is down")
	errTimeout = errors.New("no answer in time")

	// errUnconfirmed fails an insert that a replica lacks: it is stored all the same.
	errUnconfirmed = &flow.StoreError{Class: flow.ClassRetry, Code: 319, Err: errors.New("a replica has not fetched the part")}
)

// rejected reports whether the tables reject a key, and constrained whether they do while strict.
func rejected(key int64) bool    { return key%1000 == 777 }
func constrained(key int64) bool { return key%10 == 3 }

func question[T any](ctx context.Context, c client, name string, apply func() T) (none T, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	value, err := c.do(ctx, &call{name: name, kind: reading, refuse: func() error {
		return &flow.StoreError{Class: flow.ClassRetry, Code: 202, Err: errors.New("too many queries")}
	}, apply: func() (any, error) {
		if c.down {
			return nil, &flow.StoreError{Class: flow.ClassRetry, Unreached: true, Err: errAway}
		}
		return apply(), nil
	}})
	var store *flow.StoreError
	if err != nil && !errors.As(err, &store) {
		err = &flow.StoreError{Class: flow.ClassRetry, Err: errTimeout}
	}
	if err != nil {
		return none, err
	}
	return value.(T), nil
}

func (c client) Insert(ctx context.Context, b record.Block) error {
	sent := rowsOf(b) // a copy: the caller reuses the columns
	ctx, cancel := context.WithTimeout(ctx, b.Timeout)
	defer cancel()
	_, err := c.do(ctx, &call{
		name: fmt.Sprintf("insert %s of %d", b.Token, len(sent)), kind: writing,
		refuse: func() error {
			return &flow.StoreError{Class: flow.ClassRetry, Code: 241, Large: true, Err: errors.New("memory limit")}
		},
		apply: func() (any, error) { return nil, c.insert(c.process, b.Token, sent) },
	})
	var store *flow.StoreError
	if err != nil && !errors.As(err, &store) {
		return &flow.StoreError{Class: flow.ClassRetry, Err: errTimeout}
	}
	return err
}

func (w *warehouse) insert(p *process, token string, sent []row) error {
	if w.down {
		return &flow.StoreError{Class: flow.ClassRetry, Unreached: true, Err: errAway}
	}
	for _, r := range sent {
		if rejected(r.Key) || w.strict && constrained(r.Key) {
			p.saw("an insert is rejected")
			if _, known := w.tokens[records][inMonth(token, r)]; known {
				p.saw("a constraint is newer than stored rows")
			}
			return &flow.StoreError{Class: flow.ClassPoison, Code: 469, Err: errors.New("a constraint rejects a row")}
		}
	}
	if w.short && len(sent) > fewRows {
		return &flow.StoreError{Class: flow.ClassRetry, Code: 241, Large: true, Err: errors.New("memory limit")}
	}
	if p.gone {
		p.saw("an insert is applied after its process died")
	}
	if by, known := w.owner[token]; known && by != p.name {
		p.saw("takeover during an insert")
	} else if !known {
		w.owner[token] = p.name
	}
	if len(sent) > 0 {
		if _, known := w.tokens[records][inMonth(token, sent[0])]; known {
			p.saw("insert deduplicated by its token")
		}
	}
	w.parts++
	for table := range views {
		if table == counters && w.refuses {
			p.saw("a view rejects an insert")
			return &flow.StoreError{Class: flow.ClassPoison, Code: 469, InView: true, Err: errors.New("a view rejects a row")}
		}
		w.arrive(table, token, sent)
		if table == records && !p.healed && p.driver.random.IntN(1000) < p.rates.lost/4 {
			p.saw("views miss an insert")
			return &flow.StoreError{Class: flow.ClassRetry, Err: errTimeout}
		}
	}
	w.counts = append(w.counts, partsAt{w.now(), w.parts})
	if w.lagging != nil {
		return errUnconfirmed
	}
	return nil
}

// inMonth names a token in the deduplication window of a row's month.
func inMonth(token string, r row) string {
	return token + time.UnixMilli(r.TS).UTC().Format(" 2006-01")
}

// arrive inserts the rows of each month, unless its deduplication window has the token. The
// table of sources has no months.
func (w *warehouse) arrive(table int, token string, sent []row) {
	if table == sources && len(sent) > 0 {
		w.arriveInMonth(table, token, sent)
		return
	}
	for len(sent) > 0 {
		name, n := inMonth(token, sent[0]), 1
		for n < len(sent) && inMonth(token, sent[n]) == name {
			n++
		}
		w.arriveInMonth(table, name, sent[:n])
		sent = sent[n:]
	}
}

func (w *warehouse) arriveInMonth(table int, token string, sent []row) {
	if at, known := w.tokens[table][token]; known && w.parts-at.part < window {
		return
	}
	w.tokens[table][token] = arrival{w.parts}
	if w.canary && table == records && len(sent) > 1 {
		w.canary, sent = false, sent[1:]
	}
	for _, r := range sent {
		r.arrived = w.now()
		w.rows[table] = append(w.rows[table], r)
	}
}

// age adds parts, as if other clients had inserted them.
func (w *warehouse) age(parts uint64) {
	w.parts += parts
	w.counts = append(w.counts, partsAt{w.now(), w.parts})
}

// rowsOf returns the rows of a block.
func rowsOf(b record.Block) (all []row) {
	c := b.Columns
	for i := b.From; i < b.To; i++ {
		all = append(all, row{
			flow.Identity{
				Source: string(c.Source.Value(i)), Content: string(c.Identity.Value(i)), OwnID: string(c.OwnID.Value(i)),
				PartitionID: c.PartitionID[i], Position: c.Position[i], TS: c.TS[i], Key: c.Key[i],
				RecordType: string(c.RecordType.Value(i)), ValueType: string(c.ValueType.Value(i)), Intent: string(c.Intent.Value(i)),
			},
			int(c.Lane[i]), c.Incarnation[i], c.StreamSeq[i], int(c.StreamIdx[i]), b.StoredAt, time.Time{},
		})
	}
	return all
}

// day is the key of a row's mark: source, partition, day.
func (r row) day() flow.SourceDay {
	d := flow.SourceDay{Source: r.Source, Partition: r.PartitionID, Day: flow.Day(r.TS)}
	if r.Content != "" {
		d.Partition = 0
	}
	return d
}

// mark is the row's position, a candidate for the day's maximum.
func (r row) mark() int64 {
	if r.Content != "" {
		return r.TS
	}
	return r.Position
}

// at is the place of a row.
type at struct {
	lane        int
	incarnation uint64
	seq         uint64
	index       int
}

func (r row) at() at { return at{r.lane, r.incarnation, r.seq, r.index} }
