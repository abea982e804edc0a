package oracle

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
)

// Line is a ledger line about one record. A record sent in several requests may have several
// lines. One without identity has a line for each request, but not for its retries.
type Line struct {
	Source string          `json:"source"`
	Acked  bool            `json:"acked"` // the api answered OK; otherwise the record may be stored or not
	Record json.RawMessage `json:"record"`
}

// Counters is the table of counters.
const Counters = "counts_1m"

// Oracle computes the tables of one source.
type Oracle struct {
	// Forgotten are process instances that were forgotten after their end. Set it before Read.
	Forgotten map[string]bool

	// BusinessKey is the variable of the ingester's --business-key. Set it before Read.
	BusinessKey string

	source     string
	expired    map[string]int64   // rows that may have expired
	gone       map[string]int64   // counters of expired rows
	rows       map[string]*times  // by rowColumns
	contents   map[[32]byte]times // of records identified by content
	unsure     []unsure
	settled    bool
	acked      int64
	counts     map[string]int64
	aggregates *aggregates
}

// times are the minimum, maximum, and actual number of a row.
type times struct{ must, may, got int64 }

type unsure struct {
	row string
	raw []byte
}

func New(source string) *Oracle {
	return &Oracle{source: source, expired: map[string]int64{}, gone: map[string]int64{}, rows: map[string]*times{}, contents: map[[32]byte]times{}, counts: map[string]int64{}, aggregates: newAggregates()}
}

// ReadExpired adds rows that expired by ClickHouse's clock, in the format of Records().Query.
// Call it before Read. Rows and their counters may be merged away, or stored again after a
// resend. Aggregates never expire.
func (o *Oracle) ReadExpired(rows io.Reader) error {
	return o.eachRow(rows, func(row string) { o.expired[row]++ })
}

// Read adds the lines of this source. It ignores an incomplete last line, left by a killed
// client.
func (o *Oracle) Read(lines io.Reader) error {
	in := bufio.NewReaderSize(lines, 1<<20)
	for {
		text, err := in.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("oracle: read the ledger of %s: %w", o.source, err)
		}
		var line Line
		if err := json.Unmarshal(text, &line); err != nil {
			return fmt.Errorf("oracle: read the ledger of %s: %w", o.source, err)
		}
		if line.Source != o.source {
			continue
		}
		if err := o.Add(line); err != nil {
			return err
		}
	}
}

func (o *Oracle) Add(line Line) error {
	r, err := parse(line.Source, line.Record)
	if err != nil || o.Forgotten[string(r.Value.ProcessInstanceKey)] {
		return err
	}
	row := r.row()
	of := o.rows[row]
	if of == nil {
		of = new(times)
		o.rows[row] = of
	}
	had := *of // counts of this record, not of all equal rows
	var content [32]byte
	switch r.known {
	case byContent:
		if content, err = contentOf(row, line.Record); err != nil {
			return err
		}
		had = o.contents[content]
	case byRequest:
		had = times{}
	}
	if had.may == 0 {
		of.may++
	}
	switch {
	case line.Acked && had.must == 0:
		of.must++
		o.acked++
		o.store(r)
	case !line.Acked && had.may == 0:
		o.unsure = append(o.unsure, unsure{row, bytes.Clone(line.Record)})
	}
	if r.known == byContent {
		if had.may = 1; line.Acked {
			had.must = 1
		}
		o.contents[content] = had
	}
	return nil
}

// rowColumns are the compared columns of flow.records.
var rowColumns = []string{"id", "partition_id", "position", "ts", "key", "record_type", "value_type", "intent", "bpmn_process_id", "process_instance_key"}

// madeUp matches generated ids of records without one.
var madeUp = regexp.MustCompile(`^h-[0-9a-f]{32}$`)

// row returns the expected row of the record.
func (r *record) row() string {
	return strings.Join([]string{string(r.ID), whole(r.PartitionID.n), whole(r.Position.n), number{r.ts, true}.time(), whole(r.Key.n),
		string(r.RecordType), string(r.ValueType), string(r.Intent), string(r.Value.BpmnProcessID), string(r.Value.ProcessInstanceKey)}, "\t")
}

// contentOf hashes the record, independent of the order of its members.
func contentOf(row string, raw []byte) ([32]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var all any
	if err := decoder.Decode(&all); err != nil {
		return [32]byte{}, err
	}
	sorted, err := json.Marshal(all)
	return sha256.Sum256(append([]byte(row), sorted...)), err
}

// Acked returns the number of acknowledged records.
func (o *Oracle) Acked() int64 { return o.acked }

// Records returns the table of rows, which CompareRecords compares first.
func (o *Oracle) Records() *Table { return newTable("records", len(rowColumns), rowColumns...) }

// CompareRecords compares flow.records, without FINAL, as read by Records().Query. It
// determines which unacknowledged records are stored.
func (o *Oracle) CompareRecords(rows io.Reader) (Report, error) {
	t := o.Records()
	r := Report{Table: t.Name}
	err := o.eachRow(rows, func(row string) {
		r.Rows++
		of := o.rows[row]
		if of == nil {
			of = new(times)
			o.rows[row] = of
		}
		of.got++
	})
	for row, of := range o.rows {
		wrong := func(sum *int64, want, n int64) {
			*sum += n
			r.name(Difference{o.source, t.Name, t.named(row), "", whole(want), whole(of.got)})
		}
		switch {
		case of.got > of.may && of.may == 0:
			wrong(&r.Strangers, 0, of.got)
		case of.got > of.may:
			wrong(&r.Doubled, of.may, of.got-of.may)
		case of.may > 0 && o.expired[row] > of.may: // else the instance was forgotten
			wrong(&r.Doubled, of.may, o.expired[row]-of.may)
		case of.got < of.must-o.expired[row]:
			wrong(&r.Missing, of.must, of.must-of.got)
		}
	}
	if err != nil {
		return r, err
	}
	return r, o.settle()
}

// eachRow reads rows, and drops generated ids.
func (o *Oracle) eachRow(rows io.Reader, do func(row string)) error {
	return o.Records().each(rows, func(row string, _ []string) {
		if id, rest, _ := strings.Cut(row, "\t"); madeUp.MatchString(id) {
			row = "\t" + rest
		}
		do(row)
	})
}

// settle adds the unacknowledged records that are stored.
func (o *Oracle) settle() error {
	if o.settled {
		return nil
	}
	o.settled = true
	for _, u := range o.unsure {
		of := o.rows[u.row]
		if min(max(of.got, o.expired[u.row]), of.may) <= of.must {
			continue
		}
		of.must++
		r, err := parse(o.source, u.raw)
		if err != nil {
			return err
		}
		o.store(r)
	}
	o.unsure = nil
	return nil
}

func (o *Oracle) store(r *record) {
	minute := time.UnixMilli(r.ts).UTC().Truncate(time.Minute).Format(time.DateTime)
	counter := strings.Join([]string{minute, string(r.ValueType), string(r.RecordType), string(r.Intent), string(r.Value.BpmnProcessID),
		whole(r.version.n), string(r.Value.TenantID)}, "\t")
	o.counts[counter]++
	if o.expired[r.row()] > 0 {
		o.gone[counter]++
	}
	o.aggregates.take(r, o.BusinessKey)
}

// CompareCounters compares the counters. Strangers and Missing of the report are the sums by
// which they are too high and too low.
func (o *Oracle) CompareCounters(rows io.Reader) (Report, error) {
	t := o.counters()
	r := Report{Table: t.Name}
	seen := map[string]bool{}
	err := t.each(rows, func(key string, cells []string) {
		var got int64
		if _, err := fmt.Sscan(cells[0], &got); err != nil {
			r.name(Difference{o.source, t.Name, t.named(key), "records", "a number", cells[0]})
			r.Wrong++
			return
		}
		r.Rows += got
		seen[key] = true
		o.count(&r, t, key, got)
	})
	for key := range o.counts {
		if !seen[key] {
			o.count(&r, t, key, 0)
		}
	}
	return r, err
}

// count compares one counter.
func (o *Oracle) count(r *Report, t *Table, key string, got int64) {
	want := o.counts[key]
	switch {
	case got > want+o.gone[key]:
		r.Strangers += got - want
	case got < want-o.gone[key]:
		r.Missing += want - got
	default:
		return
	}
	r.name(Difference{o.source, t.Name, t.named(key), "records", whole(want), whole(got)})
}

// CountersQuery returns the query for CompareCounters.
func (o *Oracle) CountersQuery(database string) string { return o.counters().Query(database, o.source) }

func (o *Oracle) counters() *Table {
	t := newTable(Counters, 7, "minute", "value_type", "record_type", "intent", "bpmn_process_id", "version", "tenant_id", "records")
	t.from = "minute, value_type, record_type, intent, bpmn_process_id, version, tenant_id, sum(c.records) AS records"
	return t
}

// Aggregates returns the views of all aggregate tables. It omits v_sources after forgetting or
// expiry, because v_sources counts all records of a source.
func (o *Oracle) Aggregates() []*Table {
	all := o.aggregates.tables()
	if len(o.Forgotten)+len(o.expired) == 0 {
		all = append(all, o.aggregates.sources())
	}
	return all
}
