package forget

import (
	"encoding/json"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/warehouse"
)

// Receipt says what was forgotten and how much of it there was; never a value.
type Receipt struct {
	ID       string               `json:"id"`
	Begun    time.Time            `json:"begun"`
	Done     time.Time            `json:"done,omitzero"` // missing until it is complete
	Asked    string               `json:"asked"`         // instance KEY, or the name of a variable
	By       string               `json:"by,omitempty"`  // name of the person who asked, as given
	Before   time.Time            `json:"before"`        // records with a timestamp up to then are forgotten
	Subjects []flow.ForgetSubject `json:"subjects"`      // instances, and those that they called

	// How much there was when it was first looked; nil before that.
	Found *Found `json:"found,omitempty"`

	// How much was removed, when it is done.
	Records uint64                    `json:"records"` // rows of flow.records
	Lanes   []warehouse.ForgottenLane `json:"lanes"`   // by which these came in

	// Tables of the database models that may hold something of them: those in which an
	// instance is found, and those without a column process_instance_key. They are the
	// modeller's to build anew or to clean.
	Models []string `json:"models"`

	Recounted []string `json:"recounted"` // days whose counters were recomputed

	// No reader of the log returns these records any more. The messages that hold them
	// are purged with the history of the lanes: from this time on, in an idle lane a
	// deduplication window later.
	LogUntil time.Time `json:"log_until,omitzero"`

	OutOfReach []string `json:"out_of_reach"`
}

// Found is how much there was in tables and dead letters.
type Found struct {
	Records     uint64            `json:"records"`
	Tables      map[string]uint64 `json:"tables"` // rows, by aggregate table
	DeadLetters int               `json:"dead_letters"`
}

// outOfReach is what cannot be deleted from here.
var outOfReach = []string{
	"backups of ClickHouse and NATS; after the restore of one from before this receipt, sluice forget --receipt with this receipt repeats it",
	"exported files, and databases that sluice rebuild has made",
	"the engine that sent the records, and its other exporters",
	"bytes of purged messages in a block file of NATS, until NATS compacts or removes the file",
	"free blocks of the file system; old parts of tables, which ClickHouse removes within minutes",
}

// order is what readers of the log need of it.
func (r *Receipt) order() flow.Forget {
	return flow.Forget{ID: r.ID, Before: r.Before.UnixMilli(), Subjects: r.Subjects, Asked: r.Asked, By: r.By}
}

func (r *Receipt) text() string {
	text, _ := json.Marshal(r) // plain members
	return string(text)
}
