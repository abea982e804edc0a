package change

import (
	"net/url"
	"time"
)

// Audit is a row of flow.changes: who changed what, and when. It never holds
// a value.
type Audit struct {
	Seq        uint64    // stream sequence on lane 0
	At         time.Time // when the api took it in, UTC
	By         string    // subject of the token
	Kind       Kind      // what was done
	TargetKind string    // user or field
	Key        string    // the user's subject; or tableId/fieldId, escaped as in the path of a URL
	Members    []string  // names of the members touched, sorted
}

// Audit describes the change that stands at seq of the stream.
func (c *Change) Audit(seq uint64) Audit {
	a := Audit{Seq: seq, At: c.At, By: c.By, Kind: c.Kind, TargetKind: "user", Key: c.Target.User, Members: c.Members}
	if c.Target.User == "" {
		a.TargetKind = "field"
		a.Key = url.PathEscape(c.Target.Table) + "/" + url.PathEscape(c.Target.Field)
	}
	return a
}
