package server

import (
	"errors"
	"time"

	"sluice/pkg/option"
)

// Config configures Serve.
type Config struct {
	Data       string `default:"./data/clickhouse" zero:"an error" help:"Folder of the tables."` // created if missing; one process at a time
	Listen     string `default:"127.0.0.1:9000" help:"Address of the native protocol; beyond loopback only if every user needs a password."`
	HTTP       string `name:"http" default:"127.0.0.1:8123" zero:"off" help:"Address of HTTP; off when empty."`
	User       string `default:"default" help:"The only user, with all rights; not with --secrets."`
	Password   string `help:"Password of the user; preferably set by the variable."`
	Secrets    string `help:"Folder with the passwords of the users admin, ingester, analyst, modeller and console, created if missing; without it, on loopback, every client has all rights."` // see users.go
	Private    bool   `help:"With --secrets: the analyst needs a password too; else connections without a password are the analyst."`
	AllowFiles bool   `help:"Allow table functions that read files and other servers, such as file(), url(), s3(), and remote(); the process is then not confined to its folder."`
	Statements
	Library string `name:"clickhouse-library" help:"File of the engine; next to the program when empty."`

	Sessions int           `kong:"-" default:"512"`        // concurrent native connections, idle ones included; more get code 202
	MaxBlock int64         `kong:"-" default:"1073741824"` // bytes of a native block sent by a client
	Cluster  []Shard       `kong:"-"`                      // with AllowFiles: servers of the clusters main and replicas; see Shard
	Drain    time.Duration `kong:"-" default:"8s"`         // at a stop, running statements are killed after this
}

// Statements limits the resources of statements.
type Statements struct {
	Analyst  Limits `embed:"" prefix:"analyst-"`
	Modeller Limits `embed:"" prefix:"modeller-"`
	Analysts int64  `name:"analysts-memory" help:"Memory of all statements of analyst and modeller together in bytes: beyond it the largest is killed. 0: a third of ClickHouse's."`
	Models   int64  `name:"models-bytes" default:"10737418240" help:"Disk of the database models in bytes: above it the modeller can only read, drop and truncate."`
	Slots    int    `name:"clickhouse-slots" default:"64" help:"Concurrent statements of ClickHouse; more wait for 5 s, then are refused."`                                  // with code 202
	Kept     int    `name:"clickhouse-kept-slots" default:"8" help:"Of these, slots reserved for the ingester, and as many for console and admin, if users have passwords."` // at most a third
}

// Shard is an engine, perhaps this one, as a shard of Distributed tables of the cluster main, or as a replica of the
// only shard of the cluster replicas. It is for trying
// out what will run on a cluster: nothing is replicated, and over the wire a shard answers
// only whole queries, as with distributed_group_by_no_merge. A shard at the address of
// Listen is this engine and is accessed locally.
type Shard struct {
	Address  string // of its native protocol, host:port
	Database string // default database; empty: default
}

// ModelsDatabase is the database of the modeller's tables and views.
const ModelsDatabase = "models"

// Limits limit one statement of a user.
type Limits struct {
	Memory int64         `default:"2147483648" help:"Memory of one statement of this user in bytes; as much again may spill to disk."` // for sorting and grouping
	Time   time.Duration `default:"60s" help:"Time limit of one statement of this user."`
	Rows   int64         `default:"1000000" help:"Row limit of one result of this user."`
}

func (c Config) withDefaults() (Config, error) {
	if c.Data == "" {
		return c, errors.New("embedded clickhouse: data folder is not set")
	}
	option.Defaults(&c)
	if c.Secrets == "" {
		c.Kept = 0
	}
	c.Kept = min(c.Kept, c.Slots/3)
	if len(c.Cluster) > 0 && !c.AllowFiles {
		return c, errors.New("embedded clickhouse: shards need AllowFiles")
	}
	for _, address := range []string{c.Listen, c.HTTP} {
		if address == "" || c.isPrivate() {
			continue
		}
		if err := OnLoopback(address); err != nil {
			return c, err
		}
	}
	return c, nil
}
