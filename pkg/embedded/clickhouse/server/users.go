package server

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"sluice/pkg/embedded/clickhouse/library"
)

// user is a user of the server.
type user struct {
	Name   string // value of currentUser()
	Role   role
	Digest [sha256.Size]byte // of the password
	Free   bool              // logs in without a password
}

// Files of Config.Secrets: one line each.
const (
	AdminSecret    = "clickhouse-admin"
	IngesterSecret = "clickhouse-ingester"
	AnalystSecret  = "clickhouse-analyst"
	ModellerSecret = "clickhouse-modeller"
	ConsoleSecret  = "clickhouse-console"
)

// users are the users of cfg: User with Password, who has all rights, or those whose
// passwords are in Secrets.
func (c Config) users() ([]user, error) {
	if c.Secrets == "" {
		return []user{{Name: c.User, Role: roleAdmin, Digest: sha256.Sum256([]byte(c.Password)), Free: c.Password == ""}}, nil
	}
	var all []user
	for _, u := range []struct {
		user user
		file string
	}{
		{user{Name: "admin", Role: roleAdmin}, AdminSecret},
		{user{Name: "ingester", Role: roleIngester}, IngesterSecret},
		{user{Name: "analyst", Role: roleAnalyst, Free: !c.Private}, AnalystSecret},
		{user{Name: "modeller", Role: roleModeller}, ModellerSecret},
		{user{Name: "console", Role: roleConsole}, ConsoleSecret},
	} {
		password, err := readSecret(filepath.Join(c.Secrets, u.file))
		if err != nil {
			return nil, fmt.Errorf("the password of the ClickHouse user %s: %w", u.user.Name, err)
		}
		u.user.Digest = sha256.Sum256([]byte(password))
		all = append(all, u.user)
	}
	return all, nil
}

func readSecret(file string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	secret := strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r")
	if secret == "" || strings.ContainsAny(secret, "\r\n") {
		return "", fmt.Errorf("%s must hold one line", file)
	}
	return secret, nil
}

// isPrivate reports whether every user needs a password.
func (c Config) isPrivate() bool {
	if c.Secrets != "" {
		return c.Private
	}
	return c.Password != ""
}

// OnLoopback refuses an address that other machines can reach.
func OnLoopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("embedded clickhouse: %w", err)
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("ClickHouse cannot listen on %s while clients can read without a password: set --private, or use 127.0.0.1", address)
}

// accounts are the users of the server.
type accounts []user

// logIn finds the user of a name and a password. Without a name, or with "default" if there
// is no such user, it is the analyst. Every failure takes the same time.
func (a accounts) logIn(name, password string) (user, error) {
	digest := sha256.Sum256([]byte(password))
	known := func(name string) bool {
		for _, u := range a {
			if u.Name == name {
				return true
			}
		}
		return false
	}
	asked := name
	if asked == "" {
		asked = "default"
	}
	if asked == "default" && !known(asked) {
		asked = "analyst"
	}
	var found *user
	for i := range a {
		right := subtle.ConstantTimeCompare(digest[:], a[i].Digest[:]) == 1
		if a[i].Name == asked && (right || a[i].Free && password == "") {
			found = &a[i]
		}
	}
	if found == nil {
		return user{}, library.Exceptionf("AUTHENTICATION_FAILED",
			"%.64s: Authentication failed: password is incorrect, or there is no user with such name.", name)
	}
	return *found, nil
}

// The answer to a failed log-in is delayed by the recent failures of its address. Successful
// ones never wait, so no client can lock another one out.
const (
	firstDelay  = 50 * time.Millisecond
	longDelay   = time.Second
	forgetAfter = time.Minute
	maxGuessers = 4096 // tracked addresses
)

// logins authenticates users and tracks failures by address.
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

// logIn delays failures. The log names the user, never the password.
func (l *logins) logIn(ctx context.Context, from net.Addr, protocol, name, password string) (user, error) {
	who, err := l.accounts.logIn(name, password)
	if err == nil {
		return who, nil
	}
	delay, failures := l.failed(addressOf(from), time.Now())
	l.log.Warn("clickhouse: log-in failed", "user", firstOf(name, 64), "client", from.String(), "protocol", protocol, "failures", failures)
	select {
	case <-time.After(delay):
	case <-ctx.Done():
	}
	return who, err
}

// failed counts a failure, and returns the delay of the answer.
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

// firstOf truncates a text to size bytes.
func firstOf(text string, size int) string { return text[:min(len(text), size)] }
