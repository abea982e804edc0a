package nats

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/crypto/bcrypt"

	"sluice/pkg/accept"
)

// Config configures the embedded server.
type Config struct {
	Data       string `default:"./data/nats" zero:"that of ConfigFile" help:"Folder of the streams."`                                                         // created if missing; one server at a time
	Listen     string `default:"127.0.0.1:4222" zero:"in process only" help:"Address for clients; beyond loopback only with --config and credentials in it."` // port 0 for a free one
	Monitor    string `help:"Address of the monitoring pages, loopback only; off when empty."`
	ConfigFile string `name:"config" type:"existingfile" help:"File nats.conf to use instead of the other options, clusters included."` // Data, MaxStore and Name fill in what it omits

	Name     string        `kong:"-" default:"sluice"` // server name, in its cluster and in logs
	User     string        `kong:"-"`                  // of clients; User or Users is required to listen beyond loopback
	Password string        `kong:"-"`                  // of User
	Users    []User        `kong:"-"`                  // instead of User: users with their permissions
	MaxStore int64         `kong:"-"`                  // disk limit of JetStream in bytes; default: the space free at start
	Patience time.Duration `kong:"-" default:"2m"`     // limit of a start, recovery of streams included
}

// User is a user with its permissions.
type User struct {
	Name, Password     string
	Publish, Subscribe []string // allowed subjects, with wildcards
}

const (
	maxPayload = 16 << 20  // bytes of one message with its headers, as on lanes
	maxPending = 256 << 20 // bytes buffered per client: a reader of many 512 KiB messages must not become a slow consumer
	maxMemory  = 1 << 30   // bytes of memory streams: consumer state only
)

func (c Config) options(log *slog.Logger) (*server.Options, error) {
	if c.ConfigFile != "" {
		return c.fileOptions(log)
	}
	opts := &server.Options{
		ServerName: c.Name,
		MaxPayload: maxPayload,
		MaxPending: maxPending,
		DontListen: c.Listen == "",
		Username:   c.User,
		Password:   c.Password,
	}
	var err error
	if opts.Users, err = c.users(); err != nil {
		return nil, err
	}
	if c.Listen != "" {
		host, port, err := splitHostPort(c.Listen)
		if err != nil {
			return nil, fmt.Errorf("NATS listen address %q: %w", c.Listen, err)
		}
		if !loopback(host) && (c.User == "" || c.Password == "") && len(c.Users) == 0 {
			return nil, fmt.Errorf("NATS listen address %q is reachable from other machines: set a user and a password, or listen on 127.0.0.1", c.Listen)
		}
		opts.Host, opts.Port = host, port
	}
	if c.Monitor != "" {
		host, port, err := splitHostPort(c.Monitor)
		if err != nil {
			return nil, fmt.Errorf("NATS monitoring address %q: %w", c.Monitor, err)
		}
		if !loopback(host) {
			return nil, fmt.Errorf("NATS monitoring address %q: the monitoring pages have no authentication: use a loopback address", c.Monitor)
		}
		opts.HTTPHost, opts.HTTPPort = host, port
	}
	c.common(opts)
	return opts, nil
}

// users converts the Users of the Config, with password hashes of the lowest cost: the
// passwords are random and too long to guess.
func (c Config) users() ([]*server.User, error) {
	var all []*server.User
	for _, u := range c.Users {
		hash, err := bcrypt.GenerateFromPassword([]byte(u.Password), bcrypt.MinCost)
		if err != nil {
			return nil, fmt.Errorf("hash the password of the NATS user %s: %w", u.Name, err)
		}
		all = append(all, &server.User{Username: u.Name, Password: string(hash), Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: u.Publish},
			Subscribe: &server.SubjectPermission{Allow: u.Subscribe},
		}})
	}
	return all, nil
}

// fileOptions reads a nats.conf. It changes only sync_interval, to always: no
// acknowledgement before the fsync.
func (c Config) fileOptions(log *slog.Logger) (*server.Options, error) {
	opts, err := server.ProcessConfigFile(c.ConfigFile)
	if err != nil {
		return nil, fmt.Errorf("read NATS configuration: %w", err)
	}
	if !opts.SyncAlways {
		log.Warn("the NATS configuration acknowledges messages before syncing them; sync_interval is set to always",
			"file", c.ConfigFile, "add", "jetstream { sync_interval: always }")
	}
	c.common(opts)
	return opts, nil
}

// common sets the options of every configuration.
func (c Config) common(opts *server.Options) {
	opts.JetStream = true
	opts.MaxConn = min(cmp.Or(opts.MaxConn, server.DEFAULT_MAX_CONNECTIONS), accept.Max())
	opts.SyncAlways = true
	opts.NoSigs = true // the program handles signals
	if opts.ServerName == "" {
		opts.ServerName = c.Name
	}
	if opts.StoreDir == "" {
		opts.StoreDir = c.Data
	}
	if opts.JetStreamMaxStore == 0 {
		opts.JetStreamMaxStore = c.MaxStore
	}
	if opts.JetStreamMaxMemory == 0 {
		opts.JetStreamMaxMemory = maxMemory
	}
	// To the server 0 means nothing, -1 detect.
	if opts.JetStreamMaxStore == 0 {
		opts.JetStreamMaxStore = -1
	}
}

// splitHostPort parses host:port; port 0 becomes the server's value for a free port.
func splitHostPort(address string) (string, int, error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("port %q is not a number from 0 to 65535", text)
	}
	if port == 0 {
		return host, server.RANDOM_PORT, nil
	}
	return host, int(port), nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
