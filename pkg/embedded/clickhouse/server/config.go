package server

import (
	"errors"
	"time"
)

// Config says how the engine is served.
type Config struct {
	Library    string        // file of the engine; default: as library.Locate("") finds it
	Data       string        // folder of the engine, made if missing; one process at a time may have it
	Listen     string        // address of the native protocol; default 127.0.0.1:9000
	HTTP       string        // address of HTTP, usually 127.0.0.1:8123; empty: off
	User       string        // the one user, who may do everything; default "default"
	Password   string        // of User; without one only loopback addresses are listened on
	Secrets    string        // instead of User: folder with the passwords of the users admin, ingester and analyst, see users.go
	Private    bool          // with Secrets: the analyst needs the password too; else a connection without one is the analyst
	Analyst    Limits        // of each statement of the analyst
	Slots      int           // statements at a time; default 64. More wait for 5 s, then get code 202
	Kept       int           // of Slots, with Secrets, for the ingester alone; default 8, at most half
	Sessions   int           // native connections at a time, idle ones included; default 512. More get code 202
	MaxBlock   int64         // bytes a native block sent by a client may have; default 1 GiB
	AllowFiles bool          // statements may leave the database: file(), url(), s3(), remote() and their kin; the process is not confined then
	Cluster    []Shard       // with AllowFiles: shards that statements reach under the name "main"; see Shard
	Drain      time.Duration // at a stop, what runs may take this long to finish before it is killed; default 8 s
}

// Shard is another engine, or this one, as tables of the engine Distributed see it.
// It is for trying out what is to run on a cluster: nothing is replicated, and over
// the wire a shard answers only whole queries, as distributed_group_by_no_merge
// makes them. A shard at the address of Listen is this engine itself, and not asked
// over the wire.
type Shard struct {
	Address  string // of its native protocol, host:port
	Database string // of tables that are named without one; empty: default
}

// Limits are those of one statement.
type Limits struct {
	Memory int64         // bytes; default 2 GiB. As much again may go to disk for sorting and grouping
	Time   time.Duration // default 60 s
	Rows   int64         // of the result; default 1,000,000
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
	if c.Slots <= 0 {
		c.Slots = 64
	}
	switch {
	case c.Secrets == "":
		c.Kept = 0
	case c.Kept <= 0:
		c.Kept = 8
	}
	c.Kept = min(c.Kept, c.Slots/2)
	if c.Sessions <= 0 {
		c.Sessions = 512
	}
	if c.Analyst.Memory <= 0 {
		c.Analyst.Memory = 2 << 30
	}
	if c.Analyst.Time <= 0 {
		c.Analyst.Time = time.Minute
	}
	if c.Analyst.Rows <= 0 {
		c.Analyst.Rows = 1_000_000
	}
	if c.MaxBlock <= 0 {
		c.MaxBlock = 1 << 30
	}
	if len(c.Cluster) > 0 && !c.AllowFiles {
		return c, errors.New("embedded clickhouse: shards are reached only with AllowFiles")
	}
	if c.Drain <= 0 {
		c.Drain = 8 * time.Second
	}
	for _, address := range []string{c.Listen, c.HTTP} {
		if address == "" || c.isPrivate() {
			continue
		}
		if err := onLoopback(address); err != nil {
			return c, err
		}
	}
	return c, nil
}
