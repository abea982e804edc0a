package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"sluice/pkg/load"
)

// Plan is the schedule of a run with so many NATS servers, as text.
func Plan(cfg Config, servers int) []string {
	s := scene{
		sources:  Config{}.posts().sources(),
		services: []string{serviceEngine, serviceAPI + "-1", serviceIngester + "-1", serviceAPI + "-2", serviceIngester + "-2"},
		apis:     []string{serviceAPI + "-1", serviceAPI + "-2"},
		links:    []string{linkClients, serviceAPI + "-1" + toNATS, serviceIngester + "-1" + toNATS, serviceIngester + "-1" + toEngine},
	}
	for i := range servers {
		s.nats = append(s.nats, fmt.Sprintf("%s-%d", serviceNATS, i+1))
	}
	s.services = append(s.nats, s.services...)
	var lines []string
	for _, f := range plan(cfg.withDefaults(), s) {
		lines = append(lines, f.at.Round(time.Millisecond).String()+" "+f.String())
	}
	return lines
}

// Link is a link to the targets, for tests.
type Link struct{ *link }

// NewLink makes one.
func NewLink(targets ...string) (Link, error) {
	l, err := newLink(targets...)
	return Link{l}, err
}

// What a Link can do.
func (l Link) Addr() string                      { return l.addr() }
func (l Link) Cut() int                          { return l.cut() }
func (l Link) Stall()                            { l.stall() }
func (l Link) Resume()                           { l.resume() }
func (l Link) Await(text string) <-chan struct{} { return l.await(text) }
func (l Link) Close()                            { l.close() }

// ExportTo exports records of a source of one partition to a server, as Run
// does for so long, and gives what the exporter did and what it must come to.
func ExportTo(ctx context.Context, url string, dir string, rate float64, long time.Duration, idsOnly bool) (records, again int64, fallbacks int, wrote []load.Range, counted int64, err error) {
	clients, err := newLink(strings.TrimPrefix(url, "http://"))
	if err != nil {
		return 0, 0, 0, nil, 0, err
	}
	defer clients.close()
	s := &stage{
		cfg: Config{For: long, Rate: rate}.withDefaults(), dir: dir, tokens: map[string]string{"one": "secret"},
		journal: &journal{out: io.Discard}, links: map[string][]*link{linkClients: {clients}},
	}
	t := &truth{sources: map[string]posted{}}
	c := cluster{"one", 1, 1, []form{asWritten, sortedMembers, withoutID, otherSequence}, false}
	if idsOnly {
		c.forms = []form{onlyID, onlyIDSorted}
	}
	err = s.export(ctx, c, 7, t)
	for _, n := range t.sources["one"].counts {
		counted += n
	}
	return t.exported.records, t.exported.again, t.exported.fallbacks, t.sources["one"].sent, counted, err
}

// Sent is what a source has sent, all of it acknowledged.
type Sent struct {
	Source  string
	Records [][]byte
}

// Judge compares a database with what was sent, records without identity by
// how many each of their requests had.
func Judge(ctx context.Context, addr, database string, all []Sent, anonymously map[string]int64, notes io.Writer) (Result, error) {
	t, err := openTables(addr, database)
	if err != nil {
		return Result{}, err
	}
	defer t.close()
	known := &truth{sources: map[string]posted{}, anonymous: &anonymous{requests: map[string]*request{}}}
	for _, sent := range all {
		s := &source{counts: map[count]int64{}}
		p := posted{counts: s.counts}
		for _, record := range sent.Records {
			if err := s.count(record); err != nil {
				return Result{}, err
			}
			var r load.Range
			if _, err := fmt.Sscanf(string(record), `{"id":"%d-%d"`, &r.Partition, &r.First); err != nil {
				return Result{}, err
			}
			r.Last = r.First
			p.acked = append(p.acked, r)
		}
		p.sent = p.acked
		known.sources[sent.Source] = p
	}
	for mark, n := range anonymously {
		known.anonymous.requests[mark] = &request{records: n, acked: true}
	}
	return t.judge(ctx, known, &journal{out: notes})
}

// Anonymous is the source whose records have no identity.
const Anonymous = anonymousSource

// Site is a stage that runs, for tests of single faults.
type Site struct {
	*breaker
	posters []*poster // to each api
}

// NewSite starts everything; close ends it.
func NewSite(ctx context.Context, cfg Config, dir string) (s *Site, close func(), err error) {
	cfg = cfg.withDefaults()
	st, err := newStage(cfg, dir, &journal{began: time.Now(), out: cfg.Journal})
	if err != nil {
		return nil, nil, err
	}
	v, err := newView(st)
	if err != nil {
		return nil, st.close, err
	}
	site := &Site{breaker: &breaker{stage: st, view: v}, posters: st.posters(anonymousSource)}
	for _, p := range site.posters {
		p.client.Timeout = time.Minute
	}
	return site, func() { v.close(); st.close() }, st.start(ctx)
}

// Post posts so many records without identity under a key to an api, counted
// from 0.
func (s *Site) Post(ctx context.Context, api int, key string, records int) error {
	body := bytes.NewBufferString("[")
	for i := range records {
		if i > 0 {
			body.WriteByte(',')
		}
		fmt.Fprintf(body, `{"recordType":"EVENT","valueType":"VARIABLE","intent":"CREATED","timestamp":1763701200123,"value":{"bpmnProcessId":%q,"name":"n","value":"1"}}`, key)
	}
	body.WriteByte(']')
	_, err := s.posters[api].post(ctx, body, key)
	return err
}

// SetClock steps the clock of a machine: it is off by so much.
func (s *Site) SetClock(machine string, off time.Duration) error { return s.setClock(machine, off) }

// Freeze freezes an api with an entry on its way.
func (s *Site) Freeze(ctx context.Context, api string, hold time.Duration) {
	s.freeze(ctx, fault{kind: freeze, target: api, hold: hold})
}

// Freezes is how often one was frozen.
func (s *Site) Freezes() int { return s.journal.sum().Freezes }

// Operate runs a command as an operator.
func (s *Site) Operate(ctx context.Context, args ...string) {
	s.operate(ctx, args[0], func(*Counts) {}, args...)
}

// Machines are those that have a clock.
func (s *Site) Machines() []string { return slices.Concat(s.nats, s.apis, []string{operator}) }

const storedOfKeys = `SELECT bpmn_process_id, count() FROM flow.records GROUP BY bpmn_process_id`

// Stored is how many records of a key are stored, once nothing waits, and Void how many
// came too late.
func (s *Site) Stored(ctx context.Context) (byKey map[string]int, void uint64, err error) {
	if err := s.view.drained(ctx); err != nil {
		return nil, 0, err
	}
	t, err := openTables(s.engine, "flow")
	if err != nil {
		return nil, 0, err
	}
	defer t.close()
	rows, err := t.db.Query(ctx, storedOfKeys)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	byKey = map[string]int{}
	for rows.Next() {
		var key string
		var n uint64
		if err := rows.Scan(&key, &n); err != nil {
			return nil, 0, err
		}
		byKey[key] = int(n)
	}
	if err := rows.Err(); err != nil {
		return nil, 0, err
	}
	void, err = s.view.void(ctx)
	return byKey, void, err
}

// Verify asks sluice verify.
func (s *Site) Verify(ctx context.Context) (bool, error) { return s.verify(ctx) }
