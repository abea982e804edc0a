package simulate

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/broker"
)

type connection struct {
	*process
	server *server
}

var _ broker.Broker = (*connection)(nil)

// answerLimit ends a call without a deadline, as nats.go does.
const answerLimit = 5 * time.Second

func ask[T any](ctx context.Context, c *connection, what kind, name string, apply func() (T, error)) (none T, err error) {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, answerLimit)
		defer cancel()
	}
	if status, _ := c.Status(); status != nats.CONNECTED {
		return none, nats.ErrReconnectBufExceeded
	}
	value, err := c.do(ctx, &call{
		name: name, kind: what, refuse: errNotLeader,
		apply: func() (any, error) { v, err := apply(); return v, err },
	})
	if err != nil {
		return none, err
	}
	return value.(T), nil
}

func (c *connection) in(name string) (*log, error) {
	if l := c.server.streams[name]; l != nil {
		return l, nil
	}
	return nil, jetstream.ErrStreamNotFound
}

func (c *connection) Publish(ctx context.Context, msg *nats.Msg) (broker.Ack, error) {
	sent := &nats.Msg{Subject: msg.Subject, Header: msg.Header, Data: append([]byte(nil), msg.Data...)} // a copy: the caller reuses its buffer
	name := fmt.Sprintf("publish %s %d bytes", msg.Subject, len(msg.Data))
	return ask(ctx, c, writing, name, func() (broker.Ack, error) { return c.server.publish(sent) })
}

func (c *connection) Info(ctx context.Context, stream, subjects string) (*jetstream.StreamInfo, error) {
	return ask(ctx, c, reading, "info "+stream, func() (*jetstream.StreamInfo, error) {
		l, err := c.in(stream)
		if err != nil {
			return nil, err
		}
		return c.server.info(l, subjects), nil
	})
}

func (c *connection) Get(ctx context.Context, stream string, seq uint64, subject string) (*jetstream.RawStreamMsg, error) {
	return ask(ctx, c, reading, fmt.Sprintf("get %s %d %s", stream, seq, subject), func() (*jetstream.RawStreamMsg, error) {
		l, err := c.in(stream)
		if err != nil {
			return nil, err
		}
		return c.server.get(c.replica(l), seq, subject)
	})
}

func (c *connection) Last(ctx context.Context, stream, subject string) (*jetstream.RawStreamMsg, error) {
	return ask(ctx, c, reading, fmt.Sprintf("last %s %s", stream, subject), func() (*jetstream.RawStreamMsg, error) {
		l, err := c.in(stream)
		if err != nil {
			return nil, err
		}
		return c.server.lastOf(c.replica(l), subject)
	})
}

func (c *connection) Purge(ctx context.Context, stream, subject string, before uint64) error {
	_, err := ask(ctx, c, writing, fmt.Sprintf("purge %s %s %d", stream, subject, before), func() (bool, error) {
		l, err := c.in(stream)
		if err == nil {
			l.purge(subject, before)
			c.saw("purge")
		}
		return true, err
	})
	return err
}

func (c *connection) Delete(ctx context.Context, stream string, seq uint64, _ bool) error {
	_, err := ask(ctx, c, writing, fmt.Sprintf("delete %s %d", stream, seq), func() (bool, error) {
		l, err := c.in(stream)
		if err == nil {
			l.remove(seq)
		}
		return true, err
	})
	return err
}

func (c *connection) Names(ctx context.Context, subject string) ([]string, error) {
	return ask(ctx, c, reading, "names", func() (names []string, _ error) {
		for name, l := range c.server.streams {
			for _, has := range l.cfg.Subjects {
				if overlap(has, subject) {
					names = append(names, name)
					break
				}
			}
		}
		slices.Sort(names)
		return names, nil
	})
}

func (c *connection) Create(ctx context.Context, cfg jetstream.StreamConfig) (*jetstream.StreamInfo, error) {
	return ask(ctx, c, writing, "create "+cfg.Name, func() (*jetstream.StreamInfo, error) { return c.server.create(cfg) })
}

func (c *connection) Update(ctx context.Context, cfg jetstream.StreamConfig) (*jetstream.StreamInfo, error) {
	return ask(ctx, c, writing, "update "+cfg.Name, func() (*jetstream.StreamInfo, error) {
		l, err := c.in(cfg.Name)
		if err != nil {
			return nil, err
		}
		l.cfg = cfg
		return c.server.info(l, ""), nil
	})
}

func (c *connection) Status() (nats.Status, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.gone:
		return nats.CLOSED, nil
	case !c.connected:
		return nats.RECONNECTING, nil
	}
	return nats.CONNECTED, nil
}

func (c *connection) Lost(ctx context.Context, f func()) {
	c.mu.Lock()
	c.losses[&f] = struct{}{}
	c.mu.Unlock()
	<-ctx.Done()
	c.mu.Lock()
	delete(c.losses, &f)
	c.mu.Unlock()
}

func (p *process) setConnected(is bool) {
	p.mu.Lock()
	p.connected = is
	var calls []func()
	for f := range p.losses {
		calls = append(calls, *f)
	}
	p.mu.Unlock()
	if !is {
		for _, f := range calls {
			f()
		}
	}
}

// replica returns the log that answers a read: the leader's, an older one of a former leader,
// or, where the stream allows it, of a replica.
func (c *connection) replica(l *log) *log {
	if l.behind == nil || time.Now().After(l.behind.until) || !l.cfg.AllowDirect && time.Now().After(l.behind.leads) || c.driver.random.IntN(2) == 0 {
		return l
	}
	c.saw("stale read")
	old := l.copy()
	for seq := range old.messages {
		if seq > l.behind.last {
			delete(old.messages, seq)
		}
	}
	for subject, seq := range old.subjects {
		if seq > l.behind.last {
			delete(old.subjects, subject)
		}
	}
	return old
}

// readAhead is the number of messages per answer.
const readAhead = 50

// read implements broker.Reading.
type read struct {
	*connection
	stream          string
	from            broker.From
	of              *log // the reading ends when the server has another one
	next            uint64
	last            []uint64 // sequences left to deliver, of the last messages of subjects
	behind, pending uint64   // at the start

	number uint64
	ahead  []broker.Message // fetched messages, each granted separately

	mu      sync.Mutex
	stopped bool
	cancel  map[*context.CancelFunc]struct{}
}

func (c *connection) Read(ctx context.Context, stream string, from broker.From) (broker.Reading, error) {
	r, err := ask(ctx, c, reading, fmt.Sprintf("read %s %s %d", stream, from.Subject, from.Seq), func() (*read, error) {
		l, err := c.in(stream)
		if err != nil {
			return nil, err
		}
		c.server.expire(l)
		r := &read{connection: c, stream: stream, from: from, next: max(from.Seq, l.first), of: l, cancel: map[*context.CancelFunc]struct{}{}}
		if r.from.Subject == "" {
			r.from.Subject = ">"
		}
		for !from.Since.IsZero() && r.next <= l.last && (l.messages[r.next] == nil || l.messages[r.next].at.Before(from.Since)) {
			r.next++
		}
		r.behind = r.next - 1
		for seq := r.next; seq <= l.last; seq++ {
			m := l.messages[seq]
			if m == nil || !fits(m.subject, r.from.Subject) || from.Last && l.subjects[m.subject] != seq {
				continue
			}
			r.pending++
			if from.Last {
				r.last = append(r.last, seq)
			}
		}
		if from.Last {
			r.next = l.last + 1
		}
		return r, nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (r *read) Begun() (behind, pending uint64) { return r.behind, r.pending }

func (r *read) ready() bool {
	if len(r.ahead) > 0 {
		return true
	}
	l := r.server.streams[r.stream]
	if l != r.of {
		return true // so that take returns the error
	}
	for len(r.last) > 0 {
		if l.messages[r.last[0]] != nil {
			return true
		}
		r.last = r.last[1:] // replaced meanwhile
	}
	for seq := r.next; seq <= l.last; seq++ {
		if m := l.messages[seq]; m != nil && fits(m.subject, r.from.Subject) {
			return true
		}
		r.next = seq + 1
	}
	return false
}

func (r *read) take() (m broker.Message, err error) {
	if len(r.ahead) == 0 {
		if r.ahead, err = r.fetch(); err != nil {
			return m, err
		}
	}
	m, r.ahead = r.ahead[0], r.ahead[1:]
	return m, nil
}

// fetch returns the available messages.
func (r *read) fetch() (all []broker.Message, _ error) {
	l := r.server.streams[r.stream]
	if l != r.of {
		return nil, jetstream.ErrConsumerDeleted
	}
	give := func(seq uint64) {
		m := l.messages[seq]
		if m == nil || !fits(m.subject, r.from.Subject) {
			return
		}
		r.number++
		all = append(all, broker.Message{Subject: m.subject, Header: m.header, Data: m.data, Seq: seq, At: m.at, Number: r.number})
		if r.from.Heads {
			all[len(all)-1].Data = nil
		}
	}
	for len(r.last) > 0 && len(all) < readAhead {
		give(r.last[0])
		r.last = r.last[1:]
	}
	for ; len(r.last) == 0 && r.next <= l.last && len(all) < readAhead; r.next++ {
		give(r.next)
	}
	left := r.left()
	for i := range all {
		all[i].Pending = left + uint64(len(all)-1-i)
	}
	return all, nil
}

func (r *read) Next(ctx context.Context) (broker.Message, error) {
	waits, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	if r.stopped {
		r.mu.Unlock()
		return broker.Message{}, jetstream.ErrMsgIteratorClosed
	}
	r.cancel[&cancel] = struct{}{}
	r.mu.Unlock()
	value, err := r.do(waits, &call{
		name: "next " + r.stream, kind: waiting, ready: r.ready, soon: func() bool { return len(r.ahead) > 0 },
		apply: func() (any, error) { return r.take() },
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.cancel, &cancel)
	switch {
	case err == nil:
		return value.(broker.Message), nil
	case r.stopped:
		err = jetstream.ErrMsgIteratorClosed
	}
	return broker.Message{}, err
}

func (r *read) Left(ctx context.Context) (pending, sent uint64, err error) {
	left, err := ask(ctx, r.connection, reading, "left "+r.stream, func() ([2]uint64, error) {
		return [2]uint64{r.left(), r.number}, nil
	})
	return left[0], left[1], err
}

// left returns the number of messages left to deliver.
func (r *read) left() uint64 {
	n := uint64(len(r.last))
	l := r.of
	for seq := r.next; seq <= l.last; seq++ {
		if m := l.messages[seq]; m != nil && fits(m.subject, r.from.Subject) {
			n++
		}
	}
	return n
}

func (r *read) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	for cancel := range r.cancel {
		(*cancel)()
	}
}
