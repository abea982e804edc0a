package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load/camunda"
	"sluice/pkg/load/simulator"
)

// recordsOfInstance is the mean number of records per instance of the simulator.
const recordsOfInstance = 120

// export writes records to the logs of an engine and posts them, as the exporters of its
// partitions do, until all are acknowledged.
func (s *site) export(ctx context.Context, e engine, seed uint64) (sum camunda.Count, err error) {
	begin := time.Now()
	bulks := e.forms == nil
	l, err := newLogs(s.Dir, e.source, simulator.Config{
		Seed: seed, Start: begin, Partitions: e.partitions, UnderWay: 200, Haste: 600, Commands: !bulks, NoIDs: bulks,
		Every: time.Duration(recordsOfInstance / (s.cfg.Rate * e.share) * float64(time.Second)),
	})
	if err != nil {
		return sum, err
	}
	defer l.close()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return l.write(ctx, begin.Add(s.cfg.For)) })
	var mu sync.Mutex
	for partition, log := range l.partitions {
		random := rand.New(rand.NewPCG(seed, uint64(partition)))
		cfg := camunda.Config{Partition: partition, Log: log, Random: rand.New(rand.NewPCG(seed, uint64(-partition))), Snapshot: min(5*time.Minute, s.cfg.For/4)}
		if bulks {
			cfg.To = &noted{&camunda.Client{URLs: []string{s.Elastic}, User: e.source, Token: s.Tokens[e.source]}, s.ledgers[e.source]}
		} else {
			// Short times, so that runs of half a minute include failures.
			cfg.To = &ownRoute{newPoster(s.URL, s.Tokens[e.source]), e.forms, fail, s.ledgers[e.source]}
			cfg.BulkRecords, cfg.BulkDelay, cfg.Backoff, cfg.MaxBackoff = 20+random.IntN(980), time.Second, 50*time.Millisecond, 2*time.Second
			cfg.Followers = min(15*time.Second, s.cfg.For/20)
		}
		x := camunda.New(cfg)
		failing, enough := context.WithTimeout(ctx, s.cfg.For*9/10)
		work.Go(func() error { s.failBroker(failing, random, e.source, partition, x); return nil })
		work.Go(func() error {
			defer enough()
			count, err := x.Run(ctx)
			mu.Lock()
			defer mu.Unlock()
			sum.Add(count)
			if err != nil {
				err = fmt.Errorf("export partition %d of %s: %w", partition, e.source, errors.Join(err, context.Cause(ctx)))
			}
			return err
		})
	}
	return sum, work.Wait()
}

// noted writes the documents of acknowledged bulks to the ledger. Other bulks are retried.
type noted struct {
	camunda.Elasticsearch
	ledger *ledger
}

func (n *noted) Bulk(ctx context.Context, bulk []byte) error {
	if err := n.Elasticsearch.Bulk(ctx, bulk); err != nil {
		return err
	}
	lines := bytes.Split(bytes.TrimSuffix(bulk, []byte("\n")), []byte("\n"))
	for i := 1; i < len(lines); i += 2 {
		if err := n.ledger.note(lines[i], true); err != nil {
			return err
		}
	}
	return nil
}

// failBroker fails the broker of a partition at random: its leader changes, or it restarts
// from a snapshot up to two snapshot intervals old.
func (s *site) failBroker(ctx context.Context, random *rand.Rand, source string, partition int64, x *camunda.Exporter) {
	kinds := []camunda.Kind{camunda.LeaderChanged, camunda.Unnoticed, camunda.Restarted, camunda.RestartedOlder}
	for deployment.Sleep(ctx, min(s.cfg.For/4, time.Duration(random.ExpFloat64()*float64(s.cfg.For/8)))) {
		kind := kinds[random.IntN(len(kinds))]
		x.Fail(camunda.Failure{Kind: kind})
		s.journal.note("the broker of partition %d of %s: %v", partition, source, kind)
	}
}

// ownRoute implements camunda.Elasticsearch with the api's own route. Each leadership uses
// another form.
type ownRoute struct {
	to    *poster
	forms []form
	fail  context.CancelCauseFunc // a permanent error ends the run

	ledger *ledger
}

func (r *ownRoute) Templates(context.Context) error { return nil }

func (r *ownRoute) Bulk(ctx context.Context, bulk []byte) error {
	body := bytes.NewBufferString("[")
	lines := bytes.Split(bytes.TrimSuffix(bulk, []byte("\n")), []byte("\n"))
	for i := 0; i+1 < len(lines); i += 2 {
		if i > 0 {
			body.WriteByte(',')
		}
		// The name of the index ends with the leadership: zeebe-record_job_8.7.LEADERSHIP.
		_, rest, _ := strings.Cut(string(lines[i]), "_8.7.")
		leadership, err := strconv.Atoi(rest[:strings.IndexAny(rest, `_"`)])
		if err != nil {
			return err
		}
		if err := r.forms[leadership%len(r.forms)].write(body, lines[i+1]); err != nil {
			return err
		}
	}
	body.WriteByte(']')
	again, err := r.to.post(ctx, body.Bytes(), "")
	if err == nil {
		err, again = r.ledger.note(body.Bytes(), true), false
	}
	if err != nil && !again {
		r.fail(err)
	}
	return err
}

// form is the format of a posted record. A resent record may have another form.
type form int

const (
	asWritten form = iota
	sortedMembers
	withoutID // identified by its position
	onlyID    // neither partition nor position: for all records of a source, or none
	onlyIDSorted
)

// write appends a record to a body.
func (f form) write(body *bytes.Buffer, record []byte) error {
	if f == asWritten {
		body.Write(record)
		return nil
	}
	var outer, value map[string]json.RawMessage
	err := json.Unmarshal(record, &outer)
	if err == nil && (f == sortedMembers || f == onlyIDSorted) { // a map is encoded in key order
		if err = json.Unmarshal(outer["value"], &value); err == nil {
			outer["value"], err = json.Marshal(value)
		}
	}
	if f == withoutID {
		delete(outer, "id")
	}
	if f == onlyID || f == onlyIDSorted { // identified by id and content, which includes the sequence
		delete(outer, "partitionId")
		delete(outer, "position")
		delete(outer, "sequence")
	}
	whole, failed := json.Marshal(outer)
	body.Write(whole)
	return errors.Join(err, failed)
}

// poster posts bodies with a token.
type poster struct {
	url, token string
	client     *http.Client
}

func newPoster(url, token string) *poster {
	return &poster{url + "/flow/flowRecord/batch", "Bearer " + token,
		&http.Client{Timeout: 8 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

// post sends a body once. After a nil error it is durable; after another it may be, and
// again reports whether to retry.
func (p *poster) post(ctx context.Context, body []byte, key string) (again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	req.Header.Set("Authorization", p.token)
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := p.client.Do(req)
	if err != nil {
		return true, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	switch {
	case err != nil:
		return true, err
	case res.StatusCode == http.StatusOK && strings.TrimSpace(string(answer)) == `{"status":"OK"}`:
		return false, nil
	case res.StatusCode >= 500, res.StatusCode == http.StatusTooManyRequests, res.StatusCode == http.StatusRequestTimeout:
		return true, errors.New(res.Status)
	}
	return false, fmt.Errorf("%s: %.300s", res.Status, answer)
}
