// Package console is the page that people look at: a web application of pages
// that the server renders, with a little script for what is live.
//
// It reads ClickHouse as the analyst, the lanes and the dead letters in NATS, and
// the metrics of api and ingester at their ops ports. It writes nothing but what
// an admin asks for: a replay or a drop of dead letters.
package console
