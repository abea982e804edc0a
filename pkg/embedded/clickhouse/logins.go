package clickhouse

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"
)

// A log-in that fails is answered later the more of them an address has made
// lately. Those that succeed never wait, so nobody can lock another one out.
const (
	firstDelay  = 50 * time.Millisecond
	longDelay   = time.Second
	forgetAfter = time.Minute
	maxGuessers = 4096 // addresses remembered at a time
)

// logins lets users in and remembers failures by address.
type logins struct {
	accounts accounts
	log      *slog.Logger

	mu       sync.Mutex
	guessers map[string]*guesser
}

type guesser struct {
	failures int
	last     time.Time
}

func newLogins(a accounts, log *slog.Logger) *logins {
	return &logins{accounts: a, log: log, guessers: map[string]*guesser{}}
}

// logIn is that of accounts, slowed for who fails. The log names the user that
// was tried, never the password.
func (l *logins) logIn(ctx context.Context, from net.Addr, protocol, name, password string) (user, error) {
	who, err := l.accounts.logIn(name, password)
	if err == nil {
		return who, nil
	}
	delay, failures := l.failed(addressOf(from), time.Now())
	l.log.Warn("clickhouse: a log-in failed", "user", firstOf(name, 64), "client", from.String(), "protocol", protocol, "failures", failures)
	select {
	case <-time.After(delay):
	case <-ctx.Done():
	}
	return who, err
}

// failed counts a failure, and says how long to wait with the answer.
func (l *logins) failed(address string, now time.Time) (time.Duration, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.guessers) >= maxGuessers {
		for address, g := range l.guessers {
			if now.Sub(g.last) > forgetAfter || len(l.guessers) >= maxGuessers {
				delete(l.guessers, address)
			}
		}
	}
	g := l.guessers[address]
	if g == nil || now.Sub(g.last) > forgetAfter {
		g = &guesser{}
		l.guessers[address] = g
	}
	g.failures++
	g.last = now
	delay := firstDelay
	for range min(g.failures-1, 5) {
		delay *= 2
	}
	return min(delay, longDelay), g.failures
}

func addressOf(from net.Addr) string {
	host, _, err := net.SplitHostPort(from.String())
	if err != nil {
		return from.String()
	}
	return host
}

// firstOf is the beginning of a text, of at most size bytes.
func firstOf(text string, size int) string { return text[:min(len(text), size)] }
