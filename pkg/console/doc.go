// Package console is the web console: server-rendered pages, with a small script for
// live updates.
//
// It reads ClickHouse as the analyst, the lanes and dead letters in NATS, and the
// metrics of api and ingester at their ops ports. It writes only on request of an
// admin: it replays or drops dead letters, and changes source tokens.
package console
