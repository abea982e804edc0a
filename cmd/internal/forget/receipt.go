package forget

import (
	"encoding/json"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/warehouse"
)

// Receipt lists the forgotten instances and the number of their records, without values.
type Receipt struct {
	ID       string               `json:"id"`
	Begun    time.Time            `json:"begun"`
	Done     time.Time            `json:"done,omitzero"` // missing until it is complete
	Asked    string               `json:"asked"`         // instance KEY, or the name of a variable
	By       string               `json:"by,omitempty"`  // --by
	Before   time.Time            `json:"before"`        // records with a timestamp up to then are forgotten
	Subjects []flow.ForgetSubject `json:"subjects"`      // instances, and those they called

	Found *Found `json:"found,omitempty"` // nil before the first count

	// Removed, once complete.
	Records uint64                    `json:"records"` // rows of flow.records
	Lanes   []warehouse.ForgottenLane `json:"lanes"`   // lanes of these records

	// Tables of the database models that may contain data of the instances: those in which
	// an instance is found, and those without a column process_instance_key. The modeller
	// must rebuild or clean them.
	Models []string `json:"models"`

	Recounted []string `json:"recounted"` // days whose counters were recomputed

	// Time from which the messages with these records are purged; in an idle lane a
	// deduplication window later. Readers of the log skip the records already.
	LogUntil time.Time `json:"log_until,omitzero"`

	OutOfReach []string `json:"out_of_reach"`
}

// Found counts the data of the instances before it is removed.
type Found struct {
	Records     uint64            `json:"records"`
	Tables      map[string]uint64 `json:"tables"` // rows, by aggregate table
	DeadLetters int               `json:"dead_letters"`
}

// outOfReach lists copies that sluice forget cannot delete.
var outOfReach = []string{
	"backups of ClickHouse and NATS; after the restore of one older than this receipt, repeat it with sluice forget --receipt",
	"exported files, and databases created by sluice rebuild",
	"the engine that sent the records, and its other exporters",
	"bytes of purged messages in a block file of NATS, until NATS compacts or removes the file",
	"free blocks of the file system; old parts of tables, which ClickHouse removes within minutes",
}

// order is the part for readers of the log.
func (r *Receipt) order() flow.Forget {
	return flow.Forget{ID: r.ID, Before: r.Before.UnixMilli(), Subjects: r.Subjects, Asked: r.Asked, By: r.By}
}

func (r *Receipt) text() string {
	text, _ := json.Marshal(r) // plain members
	return string(text)
}
