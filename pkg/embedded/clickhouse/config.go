package clickhouse

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"time"
)

// Config says how the engine is served.
type Config struct {
	Library     string        // file of the engine; default: as Locate("") finds it
	Data        string        // folder of the engine, made if missing; one process at a time may have it
	Listen      string        // address of the native protocol; default 127.0.0.1:9000
	HTTP        string        // address of HTTP, usually 127.0.0.1:8123; empty: off
	User        string        // the one user; default "default"
	Password    string        // of User; without one only loopback addresses are listened on
	Connections int           // native sessions and HTTP requests at a time; default 64. More wait for 5 s, then get code 202
	MaxBlock    int64         // bytes a native block sent by a client may have; default 1 GiB
	AllowFiles  bool          // statements may leave the database: file(), url(), s3(), remote() and their kin; the process is not confined then
	Drain       time.Duration // at a stop, what runs may take this long to finish before it is killed; default 8 s
}

func (c Config) withDefaults() (Config, error) {
	if c.Data == "" {
		return c, errors.New("embedded clickhouse: no data folder is given")
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:9000"
	}
	if c.User == "" {
		c.User = "default"
	}
	if c.Connections <= 0 {
		c.Connections = 64
	}
	if c.MaxBlock <= 0 {
		c.MaxBlock = 1 << 30
	}
	if c.Drain <= 0 {
		c.Drain = 8 * time.Second
	}
	for _, address := range []string{c.Listen, c.HTTP} {
		if address == "" || c.Password != "" {
			continue
		}
		if err := onLoopback(address); err != nil {
			return c, err
		}
	}
	return c, nil
}

// namedByAnyone tells whether requests may use any name for this server: a page
// that gives itself one still lacks the password.
func (c Config) namedByAnyone() bool { return c.Password != "" }

// onLoopback refuses an address that others than this machine can reach.
func onLoopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("embedded clickhouse: %w", err)
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("embedded clickhouse: without a password it listens on loopback only, not on %s: "+
		"whoever can connect may read and write what this process may; set a password or use 127.0.0.1", address)
}

// check refuses a user who is not the one of the Config. It takes the same time
// for every wrong one.
func (c Config) check(user, password string) error {
	if user == "" {
		user = "default"
	}
	if same(user, c.User)&same(password, c.Password) != 1 {
		return exceptionf("AUTHENTICATION_FAILED",
			"%.64s: Authentication failed: password is incorrect, or there is no user with such name.", user)
	}
	return nil
}

// same compares without telling, by its time, how much is the same or how long
// the texts are.
func same(a, b string) int {
	left, right := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(left[:], right[:])
}
