package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"sluice/cmd/internal/simulate/oracle"
	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// style is the kind of records that a client posts.
type style int

const (
	positioned style = iota // with positions; resent in other requests, as exporters do
	contents                // with ids
	bare                    // without an identity, under idempotency keys
)

// poster is a client: one source and its requests.
type poster struct {
	*history
	name    string // its source
	subject string
	style   style
	twin    bool // another source posts the same bodies under the same subject and keys
	random  *rand.Rand
	until   time.Time

	number   int64         // of the last record
	position map[int]int64 // of each partition
	sent     []posted      // records that may be resent
	requests int           // so far
	answered []request     // acknowledged requests, which may be resent

	mu     sync.Mutex
	posts  []*request // all, in order
	resend []*request // to resend
	recut  bool       // resend them cut into other requests
}

type posted struct {
	oracle.Record
	text string
}

type request struct {
	key   string
	batch []posted
	begun time.Time
	ended time.Time // when it was acknowledged or abandoned; zero before
}

// run posts until the history heals, and resends as asked.
func (c *poster) run(ctx context.Context) {
	for rest(ctx, c.random, time.Second); ctx.Err() == nil; {
		again := c.toResend()
		for _, r := range again {
			for !c.post(ctx, r.key, r.batch) && ctx.Err() == nil {
				rest(ctx, c.random, time.Second)
			}
		}
		switch {
		case time.Now().Before(c.until):
			c.round(ctx)
			rest(ctx, c.random, 4*time.Second)
		case len(again) > 0:
		case c.pending.Load() > 0:
			rest(ctx, c.random, 2*time.Second)
		default:
			return
		}
	}
}

// resendFrom makes a client whose records have an identity resend the requests not
// acknowledged before a time.
func (c *poster) resendFrom(since time.Time, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.style == bare {
		return
	}
	c.resend, c.recut = nil, cut
	for _, r := range c.posts {
		if r.ended.IsZero() || !r.ended.Before(since) {
			c.resend = append(c.resend, r)
		}
	}
}

// toResend takes the requests to resend, cut as before or joined by threes.
func (c *poster) toResend() (requests []*request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	requests, c.resend = c.resend, nil
	if !c.recut {
		return requests
	}
	var joined []*request
	for i := 0; i < len(requests); i += 3 {
		r := &request{}
		for _, part := range requests[i:min(i+3, len(requests))] {
			r.batch = append(r.batch, part.batch...)
		}
		r.batch = append(r.batch, r.batch[0]) // no earlier request has the same body
		joined = append(joined, r)
	}
	return joined
}

// doubt marks records without an identity whose request was in flight since a time: they
// may be lost or duplicated.
func (c *poster) doubt(n *oracle.Notes, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.posts {
		if c.style == bare && (r.ended.IsZero() || !r.ended.Before(since)) {
			for _, one := range r.batch {
				n.Doubt(one.Record)
			}
		}
	}
}

func (c *poster) begins(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.posts = append(c.posts, r)
}

func (c *poster) ends(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.ended = time.Now()
}

func (c *poster) round(ctx context.Context) {
	batch := c.batch()
	key := ""
	if c.style == bare {
		c.requests++
		key = fmt.Sprintf("%s-%d", c.subject, c.requests)
	}
	begun := time.Now()
	this := &request{key: key, batch: batch, begun: begun}
	c.begins(this)
	defer c.ends(this)
	for {
		if c.post(ctx, key, batch) || ctx.Err() != nil {
			if c.style == bare {
				c.answered = append(c.answered, *this)
				c.repeat(ctx)
			}
			return
		}
		pause := 100*time.Millisecond + time.Duration(c.random.Int64N(int64(3*time.Second)))
		if c.style == bare && time.Since(begun)+pause > c.patience() {
			c.saw("request abandoned")
			return // a later retry would be a new request
		}
		if c.style == positioned && c.random.IntN(2) == 0 && len(batch) > 1 {
			// An exporter cuts unacknowledged records into other requests.
			c.saw("records resent in other requests")
			half := 1 + c.random.IntN(len(batch)-1)
			for !c.post(ctx, "", batch[:half]) && ctx.Err() == nil {
				sleep(ctx, pause)
			}
			batch = batch[half:]
		}
		sleep(ctx, pause)
	}
}

// repeat resends an acknowledged request, as if its answer had been lost.
func (c *poster) repeat(ctx context.Context) {
	for len(c.answered) > 0 && time.Since(c.answered[0].begun) > c.patience() {
		c.answered = c.answered[1:]
	}
	if len(c.answered) == 0 || c.random.IntN(4) > 0 {
		return
	}
	old := c.answered[c.random.IntN(len(c.answered))]
	c.saw("repeat of an acknowledged request")
	if time.Since(old.begun) > duplicateWindow+30*time.Second {
		c.saw("repeat beyond the duplicate window of NATS")
	}
	c.post(ctx, old.key, old.batch)
}

// patience bounds the retries of a request without identities: its last copy must reach a
// lane within the deduplication window, and an api may take half a minute.
func (c *poster) patience() time.Duration { return min(c.window/2, c.window-32*time.Second) }

// batch returns the next records, and resends some earlier ones.
func (c *poster) batch() (batch []posted) {
	if c.twin {
		for range 1 + c.requests%4 {
			batch = append(batch, c.same())
		}
		return batch
	}
	if c.style != bare && len(c.sent) > 0 && c.random.IntN(5) == 0 { // as after a restart
		from := max(0, len(c.sent)-1-c.random.IntN(30))
		batch = append(batch, c.sent[from:]...)
	}
	if c.style == positioned && c.random.IntN(40) == 0 { // positions of a wiped engine begin at 1
		c.saw("an engine is reset")
		clear(c.position)
	}
	for range 1 + c.random.IntN(6) {
		r := c.record()
		if c.style != bare {
			c.sent = append(c.sent, r)
		}
		batch = append(batch, r)
	}
	return batch
}

// same returns the record that the twin returns too.
func (c *poster) same() posted {
	c.number++
	at := c.began.Add(epoch + time.Duration(c.number)*time.Second)
	return posted{oracle.Record{Source: c.name, Number: c.number}, fmt.Sprintf(
		`{"timestamp":%d,"key":%d,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","value":{}}`, at.UnixMilli(), c.number)}
}

// record returns a new record.
func (c *poster) record() posted {
	c.number++
	number := c.number
	if c.poison && c.random.IntN(60) == 0 {
		number = c.number*1000 + 777_000_000_777 // the tables reject it
	}
	at := time.Now().Add(epoch)
	switch c.random.IntN(12) {
	case 0:
		at = at.AddDate(0, -1-c.random.IntN(2), 0) // in another month
	case 1:
		at = at.Add(-time.Duration(c.random.IntN(48)) * time.Hour)
	}
	partition := 1 + c.random.IntN(3)
	head := fmt.Sprintf(`"timestamp":%d,"key":%d,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","value":{}`, at.UnixMilli(), number)
	switch c.style {
	case positioned:
		c.position[partition] += 1 + int64(c.random.IntN(3))
		head = fmt.Sprintf(`"partitionId":%d,"position":%d,`, partition, c.position[partition]) + head
	case contents:
		head = fmt.Sprintf(`"id":"e%d",`, c.number/2) + head // two records have one id
	}
	return posted{oracle.Record{Source: c.name, Number: number}, "{" + head + "}"}
}

func (c *poster) post(ctx context.Context, key string, batch []posted) bool {
	rest(ctx, c.random, time.Millisecond) // requests that one message acknowledged must not resume at one instant
	texts := make([]string, len(batch))
	for i, r := range batch {
		texts[i] = r.text
	}
	body := "[" + strings.Join(texts, ",") + "]"
	request := record.NewRequest()
	defer request.Release()
	a := c.api(c.random.IntN(2))
	if a == nil {
		return false // the api is down
	}
	now := a.now()
	if err := request.Parse([]byte(body), record.FormAuto, record.Limits{}); err != nil {
		c.fail("the api refuses a request of %s: %v", c.name, err)
		return true
	}
	hash := record.Hash(request.Body())
	id := c.subject + "." + hash
	if key != "" {
		id = c.subject + "." + key
	}
	for _, r := range batch {
		c.write(func(n *oracle.Notes) { n.Posted(r.Record, rejected(r.Number), constrained(r.Number), id) })
	}
	receipt, err := a.publisher.Publish(ctx, &flow.Submission{
		ID: id, Hash: hash, Subject: c.subject, Source: c.name, Received: now,
		Identified: request.Identified(), Records: cutter{request},
	})
	c.log.Info("answered", "source", c.name, "request", id, "first", batch[0].Number, "last", batch[len(batch)-1].Number, "error", err, "replayed", receipt.Replayed, "places", receipt.Places)
	if err != nil {
		if !errors.Is(err, flow.ErrUnavailable) && !errors.Is(err, flow.ErrFull) && !errors.Is(err, flow.ErrBusy) && !errors.Is(err, flow.ErrHeld) {
			c.fail("a request of %s is answered %v", c.name, err)
		}
		if c.style == bare && !errors.Is(err, flow.ErrUnavailable) { // others may be cut, and stored in part
			for _, r := range batch {
				c.write(func(n *oracle.Notes) { n.Refused(r.Record) })
			}
		}
		return false
	}
	if receipt.Replayed {
		c.saw("request answered as a repeat")
	}
	for _, r := range batch {
		c.write(func(n *oracle.Notes) { n.Acknowledged(r.Record) })
	}
	return true
}

type cutter struct{ *record.Request }

func (c cutter) Cut(lanes int) ([]flow.Chunk, error) {
	return c.Request.Cut(flow.DefaultChunkBytes, lanes, nil)
}

// rest sleeps for a random time, so that no two clients wake at one instant.
func rest(ctx context.Context, random *rand.Rand, limit time.Duration) {
	sleep(ctx, time.Duration(random.Int64N(int64(limit))))
}

// sleep reports false when ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
