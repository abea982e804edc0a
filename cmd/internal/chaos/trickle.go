package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"sluice/cmd/internal/deployment"
)

// trickle is a slow client for an operation. It posts bodies one by one, each under all
// its sources, until it is acknowledged or abandoned.
type trickle struct {
	sources []string
	body    func(n int, now time.Time) string // the nth, an array of records
}

// people is a source of short-lived instances.
const people = "people"

// twins are two engines of one team: one subject, two sources, the same bodies.
var twins = []string{"twin-a", "twin-b"}

const trickleEvery = 200 * time.Millisecond

// trickles returns the clients that the operations of a run need.
func (c Config) trickles() (all []trickle) {
	if c.does("forget") || c.does("dead-replay") {
		all = append(all, trickle{[]string{people}, shortLife})
	}
	if c.does("two-sources") {
		all = append(all, trickle{twins, twinBody})
	}
	return all
}

// shortLife returns the records of an instance that starts, sets a variable, and ends.
func shortLife(n int, now time.Time) string {
	instance := 9_100_000_000_000_000 + int64(n)*10
	var all []string
	for i, of := range []struct{ valueType, intent, value string }{
		{"PROCESS_INSTANCE", "ELEMENT_ACTIVATING", `"bpmnElementType":"PROCESS"`},
		{"PROCESS_INSTANCE", "ELEMENT_ACTIVATED", `"bpmnElementType":"PROCESS"`},
		{"VARIABLE", "CREATED", fmt.Sprintf(`"name":"email","value":"\"somebody-%d@example.org\"","scopeKey":%d`, n, instance)},
		{"PROCESS_INSTANCE", "ELEMENT_COMPLETED", `"bpmnElementType":"PROCESS"`},
	} {
		key := instance
		if of.valueType == "VARIABLE" {
			key++
		}
		all = append(all, fmt.Sprintf(`{"partitionId":4,"position":%d,"key":%d,"timestamp":%d,"recordType":"EVENT","valueType":%q,"intent":%q,"value":{"bpmnProcessId":"life","version":1,"processInstanceKey":%d,"elementId":"life",%s}}`,
			4*n+i+1, key, now.UnixMilli()+int64(i), of.valueType, of.intent, instance, of.value))
	}
	return "[" + strings.Join(all, ",") + "]"
}

// twinBody returns records with a position, or records without identity.
func twinBody(n int, now time.Time) string {
	if n%2 == 0 {
		return shortLife(n, now)
	}
	record := fmt.Sprintf(`{"recordType":"EVENT","valueType":"VARIABLE","intent":"CREATED","timestamp":%d,"value":{"bpmnProcessId":"twins","processInstanceKey":"twin-%d"}}`, now.UnixMilli(), n)
	return "[" + record + "," + record + "]"
}

// trickle posts until the last fault: late operations need it too.
func (s *site) trickle(ctx context.Context, t trickle) error {
	for n := 0; ; n++ {
		body := t.body(n, time.Now())
		key := fmt.Sprintf("%s-%d", t.sources[0], n)
		for _, source := range t.sources {
			acked, err := s.deliver(ctx, newPoster(s.URL, s.Tokens[source]), []byte(body), key)
			if err == nil {
				err = s.ledgers[source].noteRequest(key, []byte(body), acked)
			}
			if err != nil {
				return fmt.Errorf("post %s: %w", source, err)
			}
		}
		select {
		case <-s.healed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(trickleEvery):
		}
	}
}

// deliver posts a body under a key until it is acknowledged or abandoned.
func (s *site) deliver(ctx context.Context, to *poster, body []byte, key string) (acked bool, err error) {
	for began := time.Now(); time.Since(began) < giveUp; {
		again, err := to.post(ctx, body, key)
		if err == nil {
			return true, nil
		}
		if !again {
			return false, err
		}
		if !deployment.Sleep(ctx, 300*time.Millisecond) {
			return false, nil
		}
	}
	return false, nil
}

// instancesOf returns the instances with acknowledged records in a ledger that have not expired.
func instancesOf(l *ledger) (all []string, err error) {
	err = l.acknowledged(l.written(), func(n int64, e entry) error {
		if n < l.live {
			return nil
		}
		var r struct {
			Value struct{ ProcessInstanceKey json.Number }
		}
		if err := json.Unmarshal(e.Record, &r); err != nil {
			return err
		}
		if key := r.Value.ProcessInstanceKey.String(); key != "" && (len(all) == 0 || all[len(all)-1] != key) {
			all = append(all, key)
		}
		return nil
	})
	return all, err
}

// resendBatch is the number of records with an identity per resent request.
const resendBatch = 200

// mark is the number of lines of every ledger at a time.
type mark struct {
	at    time.Time
	lines map[*ledger]int64
	rows  bool // tables keep the rows of later lines
}

func (s *site) written() mark {
	m := mark{at: time.Now(), lines: map[*ledger]int64{}}
	for _, l := range s.ledgers {
		m.lines[l] = l.written()
	}
	return m
}

// resend resends all acknowledged records, more than a restore requires. Records without
// identity are resent in their original requests, and only those that NATS lost: since a
// mark, or none. A request may be stored again, and is noted so, if it has rows, as the log
// alone keeps requests, or if a slow machine resends it near the end of the deduplication
// window or later.
func (s *site) resend(ctx context.Context, since mark) error {
	for source, l := range s.ledgers {
		to := newPoster(s.URL, s.Tokens[source])
		var batch []string
		var request string
		flush := func() error {
			if len(batch) == 0 {
				return nil
			}
			body := "[" + strings.Join(batch, ",") + "]"
			batch = batch[:0]
			if request != "" && (since.rows || time.Since(since.at) > s.cfg.RepeatWindow/2) {
				if err := l.noteRequest(request, []byte(body), false); err != nil {
					return err
				}
			}
			return s.insist(ctx, "resend the records of "+source, func(ctx context.Context) error {
				again, err := to.post(ctx, []byte(body), request)
				if err != nil && !again {
					return errors.Join(err, ctx.Err())
				}
				return err
			})
		}
		err := l.acknowledged(l.written(), func(n int64, e entry) error {
			if e.Request != "" && (since.lines == nil || n < since.lines[l]) {
				return nil
			}
			if len(batch) >= resendBatch || len(batch) > 0 && e.Request != request {
				if err := flush(); err != nil {
					return err
				}
			}
			request = e.Request
			batch = append(batch, string(e.Record))
			return nil
		})
		if err := errors.Join(err, flush()); err != nil {
			return err
		}
	}
	s.journal.note("everything was resent")
	return nil
}
