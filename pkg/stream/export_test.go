package stream

import (
	"context"
	"time"

	"github.com/nats-io/nuid"

	"sluice/pkg/record"
)

// ErrStale says that lanes were looked up too long ago.
var ErrStale = errStale

// CommitAfter commits submissions to lane 0 in one of the ways there are, as if
// they had been routed for no longer than until.
func (p *Publisher) CommitAfter(ctx context.Context, way string, until time.Time, subs ...*record.Submission) error {
	lane, _ := p.stream.view.Load().lane(0)
	var list []message
	for _, sub := range subs {
		m := messages(sub, sub.ID, sub.Parts)[0]
		m.until = until
		list = append(list, m)
	}
	var err error
	switch way {
	case "at once":
		_, err = p.wire.commit(ctx, lane, list)
	case "begun":
		err = p.wire.begin(ctx, lane, nuid.Next(), list[0])
	case "begun in time":
		id := nuid.Next()
		list[0].until = time.Now().Add(time.Minute)
		if err = p.wire.begin(ctx, lane, id, list[0]); err == nil {
			list[0].until = until
			_, err = p.wire.finish(ctx, lane, id, list, 1)
		}
	}
	return err
}

// Origin is what names a dead letter in its subjects.
func Origin(d DeadLetter) string { return d.origin }

// KeepFrom is what a Purger keeps.
var KeepFrom = keepFrom

// SetMargin sets what a Purger keeps beyond the duplicate window.
func (p *Purger) SetMargin(d time.Duration) { p.margin = d }

// ErrDisconnected ends an attempt whose connection was lost.
var ErrDisconnected = errDisconnected

// Judge is what is done about a failed attempt, and what the submitter hears.
func Judge(err error) (string, error) {
	v, _, answer := judge(err)
	return [...]string{"give up", "again", "unknown", "cut", "unreached", "repeated"}[v], answer
}

// DrainAfter is how long a lane's publishers are told to wait for need bytes,
// after observations of a lane whose messages have 100 bytes each: seconds
// since the first, and the first sequence.
func DrainAfter(need int, seen ...[2]int) time.Duration {
	var d drain
	begin := time.Unix(1_700_000_000, 0)
	now := begin
	for _, s := range seen {
		now = begin.Add(time.Duration(s[0]) * time.Second)
		d.observe(&Lane{First: uint64(s[1]), Messages: 10, Bytes: 1000}, now)
	}
	return d.after(need, now)
}

// NewDialer makes connections to servers that speak first.
func NewDialer(silence time.Duration) *dialer { return newDialer(silence, true) }

// Forget dials, and never comes for the connection.
func (d *dialer) Forget(network, address string) {
	result := make(chan dialed, 1)
	conn, err := d.connect(network, address)
	result <- dialed{conn, err, time.Now()}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dialing[address] = result
}
