package warehouse

import (
	"context"
	"time"

	"github.com/ClickHouse/ch-go/proto"

	"sluice/pkg/change"
)

// InsertChanges stores audit rows under a token; see Insert.
func (db *DB) InsertChanges(ctx context.Context, token string, changes []change.Audit) error {
	if len(changes) == 0 {
		return nil
	}
	if !db.cfg.Single {
		return db.insertAt(ctx, db.inserts, "changes", token, db.cfg.InsertTimeout, auditColumns(changes))
	}
	all, err := db.layout(ctx)
	if err != nil {
		return storeError("insert into "+db.name+".changes", err)
	}
	for _, r := range all {
		if err := db.insertAt(ctx, db.servers.insertsAt(r.address, db.cfg.Connections, db.metrics), "changes", token, db.cfg.InsertTimeout, auditColumns(changes)); err != nil {
			return err
		}
	}
	return nil
}

func auditColumns(changes []change.Audit) proto.Input {
	var seq proto.ColUInt64
	at := new(proto.ColDateTime64).WithPrecision(proto.PrecisionMilli).WithLocation(time.UTC)
	by, kind, targetKind := new(proto.ColStr).LowCardinality(), new(proto.ColStr).LowCardinality(), new(proto.ColStr).LowCardinality()
	key := new(proto.ColStr)
	members := proto.NewArray(new(proto.ColStr).LowCardinality())
	for _, c := range changes {
		seq.Append(c.Seq)
		at.Append(c.At)
		by.Append(c.By)
		kind.Append(string(c.Kind))
		targetKind.Append(c.TargetKind)
		key.Append(c.Key)
		members.Append(c.Members)
	}
	return proto.Input{
		{Name: "stream_seq", Data: seq},
		{Name: "changed_at", Data: at},
		{Name: "changed_by", Data: by},
		{Name: "kind", Data: kind},
		{Name: "target_kind", Data: targetKind},
		{Name: "target_key", Data: key},
		{Name: "members", Data: members},
	}
}

// insertsAt are the connections for inserts to one server.
func (s *servers) insertsAt(address string, limit int, m *metrics) *connections {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.inserts[address]
	if !ok {
		o := *s.options
		o.Addr = []string{address}
		c = newConnections(&o, limit, m)
		if s.inserts == nil {
			s.inserts = map[string]*connections{}
		}
		s.inserts[address] = c
	}
	return c
}
