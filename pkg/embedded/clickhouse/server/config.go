package server

import (
	"errors"
	"time"

	"sluice/pkg/option"
)

// Config says how the engine is served.
type Config struct {
	Data       string `default:"./data/clickhouse" zero:"an error" help:"Folder of the tables."` // made if missing; one process at a time may have it
	Listen     string `default:"127.0.0.1:9000" help:"Address of the native protocol; beyond loopback only if every user needs a password."`
	HTTP       string `name:"http" default:"127.0.0.1:8123" zero:"off" help:"Address of HTTP; off when empty."`
	User       string `default:"default" help:"The one user, who may do everything; not with --secrets."`
	Password   string `help:"Password of the user; better given as the variable."`
	Secrets    string `help:"Folder with the passwords of the users admin, ingester, analyst, modeller and console, made if missing; without it, on loopback, every client may do everything."` // see users.go
	Private    bool   `help:"With --secrets: the analyst needs a password too; else a connection without one is the analyst."`
	AllowFiles bool   `help:"Let statements leave the database: file(), url(), s3(), remote() and their kin; the process is then not confined to its folder."`
	Statements
	Library string `name:"clickhouse-library" help:"File of the engine; found next to the program when empty, and nowhere else."`

	Sessions int           `kong:"-" default:"512"`        // native connections at a time, idle ones included; more get code 202
	MaxBlock int64         `kong:"-" default:"1073741824"` // bytes a native block sent by a client may have
	Cluster  []Shard       `kong:"-"`                      // with AllowFiles: shards that statements reach under the name "main"; see Shard
	Drain    time.Duration `kong:"-" default:"8s"`         // at a stop, what runs may take this long to finish before it is killed
}

// Statements says what statements may take.
type Statements struct {
	Analyst  Limits `embed:"" prefix:"analyst-"`
	Modeller Limits `embed:"" prefix:"modeller-"`
	Analysts int64  `name:"analysts-memory" help:"Memory of all statements of analyst and modeller together in bytes: beyond it the largest is ended. 0: a third of what ClickHouse may have."`
	Models   int64  `name:"models-bytes" default:"10737418240" help:"Disk of the database models in bytes: above it the modeller only reads, drops and truncates."`
	Slots    int    `name:"clickhouse-slots" default:"64" help:"Statements that ClickHouse runs at a time; more wait for 5 s, then are refused."`                                   // with code 202
	Kept     int    `name:"clickhouse-kept-slots" default:"8" help:"Of these, how many are for the ingester alone, and as many for console and admin, where users have passwords."` // at most a third
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

// ModelsDatabase is where the modeller makes tables and views.
const ModelsDatabase = "models"

// Limits are those of one statement of a user.
type Limits struct {
	Memory int64         `default:"2147483648" help:"Memory of one statement of this user in bytes; as much again may go to disk."` // for sorting and grouping
	Time   time.Duration `default:"60s" help:"How long one statement of this user may take."`
	Rows   int64         `default:"1000000" help:"Most rows of one result of this user."`
}

func (c Config) withDefaults() (Config, error) {
	if c.Data == "" {
		return c, errors.New("embedded clickhouse: no data folder is given")
	}
	option.Defaults(&c)
	if c.Secrets == "" {
		c.Kept = 0
	}
	c.Kept = min(c.Kept, c.Slots/3)
	if len(c.Cluster) > 0 && !c.AllowFiles {
		return c, errors.New("embedded clickhouse: shards are reached only with AllowFiles")
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
