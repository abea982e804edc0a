package server

import (
	"bufio"
	"encoding/binary"

	"github.com/ClickHouse/ch-go/proto"

	"sluice/pkg/embedded/clickhouse/library"
)

// revision is the newest supported revision of the native protocol. Later ones add features
// between servers of a cluster, and sparse columns.
const revision = int(proto.FeatureServerQueryTimeInProgress) // 54460

// oldest is the oldest supported revision of clients: the first with settings as texts.
const oldest = int(proto.FeatureSettingsSerializedAsStrings)

// Packets of clients.
const (
	packetHello  = 0
	packetQuery  = 1
	packetData   = 2
	packetCancel = 3
	packetPing   = 4
	packetTables = 5 // of servers: table status request
	packetScalar = 7 // of servers: a scalar of a query, such as the shard number
)

// wholeQuery is the stage of complete queries. Servers that merge the results of shards ask
// for less.
const wholeQuery = 2

// wire reads the packets of a client. All lengths are bounded, so that no client can make
// this process allocate more than it sends.
type wire struct{ *bufio.Reader }

const (
	maxText      = 1 << 16 // names, users, settings
	maxStatement = 64 << 20
	maxSettings  = 4096
)

func (w wire) uvarint() (uint64, error) { return binary.ReadUvarint(w.Reader) }

func (w wire) text(limit uint64) (string, error) {
	size, err := w.uvarint()
	if err != nil {
		return "", unexpectedEnd(err)
	}
	if size > limit {
		return "", library.Exceptionf("UNEXPECTED_PACKET_FROM_CLIENT", "Text of %d bytes is longer than the %d allowed", size, limit)
	}
	b := blockReader{src: w.Reader, max: limit}
	if err := b.take(size, 1); err != nil {
		return "", err
	}
	return string(b.buf), nil
}

func (w wire) skip(n int) error {
	_, err := w.Discard(n)
	return unexpectedEnd(err)
}

// hello is the first packet of a client.
type hello struct {
	client                   string
	revision                 int // of this connection
	database, user, password string
}

func (w wire) hello() (h hello, err error) {
	if packet, err := w.uvarint(); err != nil {
		return h, err
	} else if packet != packetHello {
		return h, library.Exceptionf("UNEXPECTED_PACKET_FROM_CLIENT",
			"This is the native port of ClickHouse; the first packet must be a hello (HTTP has a port of its own)")
	}
	if h.client, err = w.text(maxText); err != nil {
		return h, err
	}
	var versions [3]uint64 // major, minor, revision
	for i := range versions {
		if versions[i], err = w.uvarint(); err != nil {
			return h, err
		}
	}
	h.revision = int(min(versions[2], uint64(revision)))
	for _, field := range []*string{&h.database, &h.user, &h.password} {
		if *field, err = w.text(maxText); err != nil {
			return h, err
		}
	}
	return h, nil
}

// setting is one setting of a statement.
type setting struct {
	name, value string
	important   bool // if unknown, refuse the statement instead of ignoring it
}

// query is a statement of a client.
type query struct {
	id, body   string
	settings   []setting
	params     []setting // values for {name:Type}, quoted as in ClickHouse
	compressed bool      // blocks in both directions
	stage      uint64    // of processing
}

func (w wire) query(revision int) (q query, err error) {
	if q.id, err = w.text(maxText); err != nil {
		return q, err
	}
	if err = w.skipClientInfo(revision); err != nil {
		return q, err
	}
	if q.settings, err = w.settings(); err != nil {
		return q, err
	}
	if proto.FeatureInterServerSecret.In(revision) {
		if _, err = w.text(maxText); err != nil {
			return q, err
		}
	}
	if q.stage, err = w.uvarint(); err != nil {
		return q, unexpectedEnd(err)
	}
	compression, err := w.uvarint()
	if err != nil {
		return q, unexpectedEnd(err)
	}
	q.compressed = compression != 0
	if q.body, err = w.text(maxStatement); err != nil {
		return q, err
	}
	if proto.FeatureParameters.In(revision) {
		q.params, err = w.settings()
	}
	return q, err
}

// settings reads a list of settings, terminated by an empty name.
func (w wire) settings() (all []setting, err error) {
	for {
		var s setting
		if s.name, err = w.text(maxText); err != nil || s.name == "" {
			return all, err
		}
		flags, err := w.uvarint()
		if err != nil {
			return all, unexpectedEnd(err)
		}
		if s.value, err = w.text(maxStatement); err != nil {
			return all, err
		}
		s.important = flags&1 != 0
		if all = append(all, s); len(all) > maxSettings {
			return all, library.Exceptionf("UNEXPECTED_PACKET_FROM_CLIENT", "More than %d settings", maxSettings)
		}
	}
}

// interfaceLocal is the interface of queries given to an embedded engine.
const interfaceLocal = 6

// skipClientInfo skips the client info.
func (w wire) skipClientInfo(revision int) error {
	kind, err := w.ReadByte()
	if err != nil || kind == 0 { // 0: no info
		return unexpectedEnd(err)
	}
	for range 3 { // user, query and address of the initial query
		if _, err := w.text(maxText); err != nil {
			return err
		}
	}
	if proto.FeatureQueryStartTime.In(revision) {
		if err := w.skip(8); err != nil {
			return err
		}
	}
	transport, err := w.ReadByte()
	if err != nil {
		return unexpectedEnd(err)
	}
	overTCP := transport == byte(proto.InterfaceTCP)
	switch {
	case overTCP:
		for range 3 { // OS user, host name, client name
			if _, err := w.text(maxText); err != nil {
				return err
			}
		}
		for range 3 { // major, minor, revision
			if _, err := w.uvarint(); err != nil {
				return unexpectedEnd(err)
			}
		}
	case transport != interfaceLocal: // a query of another engine carries the interface of its client
		return library.Exceptionf("UNEXPECTED_PACKET_FROM_CLIENT", "Client info is of interface %d, not TCP", transport)
	}
	if _, err := w.text(maxText); err != nil { // quota key
		return err
	}
	numbers := 0
	if overTCP {
		numbers++ // patch
	}
	if proto.FeatureDistributedDepth.In(revision) {
		numbers++
	}
	for range numbers {
		if _, err := w.uvarint(); err != nil {
			return unexpectedEnd(err)
		}
	}
	return w.skipTrace(revision)
}

func (w wire) skipTrace(revision int) error {
	if proto.FeatureOpenTelemetry.In(revision) {
		has, err := w.ReadByte()
		if err != nil {
			return unexpectedEnd(err)
		}
		if has != 0 {
			if err := w.skip(16 + 8); err != nil { // trace and span
				return err
			}
			if _, err := w.text(maxText); err != nil { // state
				return err
			}
			if err := w.skip(1); err != nil { // flags
				return err
			}
		}
	}
	if proto.FeatureParallelReplicas.In(revision) {
		for range 3 {
			if _, err := w.uvarint(); err != nil {
				return unexpectedEnd(err)
			}
		}
	}
	return nil
}
