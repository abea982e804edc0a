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

// Config says where the server keeps its data and which users may reach it.
type Config struct {
	Data       string `default:"./data/nats" zero:"that of ConfigFile" help:"Folder of the streams."`                                                         // made when missing, one server at a time
	Listen     string `default:"127.0.0.1:4222" zero:"in process only" help:"Address for clients; beyond loopback only with --config and credentials in it."` // port 0 for a free one
	Monitor    string `help:"Address of the monitoring pages, loopback only; off when empty."`
	ConfigFile string `name:"config" type:"existingfile" help:"A plain nats.conf to use instead, cluster included."` // Data, MaxStore and Name add what it leaves out

	Name     string        `kong:"-" default:"sluice"` // of the server in its cluster and in logs
	User     string        `kong:"-"`                  // user name clients must give; needed to listen beyond loopback, or Users
	Password string        `kong:"-"`                  // password clients must give
	Users    []User        `kong:"-"`                  // instead of User: the users that may connect, and what each may do
	MaxStore int64         `kong:"-"`                  // bytes JetStream may use on disk; default: what the server finds free at start
	Patience time.Duration `kong:"-" default:"2m"`     // how long a start may take, restoring streams included
}

// User is a user that may connect.
type User struct {
	Name, Password     string
	Publish, Subscribe []string // subjects, with wildcards; nothing else is allowed
}

const (
	maxPayload = 16 << 20  // bytes of one message with its headers, as the lanes take them
	maxPending = 256 << 20 // bytes the server buffers for one client: a reader of many 512 KiB messages must not be cut off
	maxMemory  = 1 << 30   // bytes of memory streams: consumer state only
)

// options turns a Config into the server's own options.
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
			return nil, fmt.Errorf("NATS listen address %q is reachable from other machines: give a user and a password, or listen on 127.0.0.1", c.Listen)
		}
		opts.Host, opts.Port = host, port
	}
	if c.Monitor != "" {
		host, port, err := splitHostPort(c.Monitor)
		if err != nil {
			return nil, fmt.Errorf("NATS monitoring address %q: %w", c.Monitor, err)
		}
		if !loopback(host) {
			return nil, fmt.Errorf("NATS monitoring address %q: the monitoring pages ask for no password, so they listen on loopback only", c.Monitor)
		}
		opts.HTTPHost, opts.HTTPPort = host, port
	}
	c.common(opts)
	return opts, nil
}

// users are those of the Config as the server knows them. It gets a hash of each
// password, the cheapest: ours are too long to be guessed.
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

// fileOptions reads a nats.conf. Everything in it stands, except that a
// JetStream that would acknowledge before syncing is made to sync.
func (c Config) fileOptions(log *slog.Logger) (*server.Options, error) {
	opts, err := server.ProcessConfigFile(c.ConfigFile)
	if err != nil {
		return nil, fmt.Errorf("read NATS configuration: %w", err)
	}
	if !opts.SyncAlways {
		log.Warn("the NATS configuration leaves messages unsynced after their acknowledgement; syncing always",
			"file", c.ConfigFile, "add", "jetstream { sync_interval: always }")
	}
	c.common(opts)
	return opts, nil
}

// common is what holds however the server is configured.
func (c Config) common(opts *server.Options) {
	opts.JetStream = true
	opts.MaxConn = min(cmp.Or(opts.MaxConn, server.DEFAULT_MAX_CONNECTIONS), accept.Most())
	opts.SyncAlways = true
	opts.NoSigs = true // signals are the program's business
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
	// Zero means "nothing" to the server, -1 "find out".
	if opts.JetStreamMaxStore == 0 {
		opts.JetStreamMaxStore = -1
	}
}

// splitHostPort reads host:port; port 0 becomes the server's own sign for "any
// free port".
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
