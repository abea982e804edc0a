package forget

import (
	"encoding/json"
	"fmt"
	"time"

	"sluice/pkg/warehouse"
)

// Receipt says what was forgotten and how much of it there was; never a value.
type Receipt struct {
	ID       string              `json:"id"`
	Begun    time.Time           `json:"begun"`
	Done     time.Time           `json:"done,omitzero"` // not yet when it is missing
	Asked    string              `json:"asked"`         // instance KEY, or the name of a variable
	By       string              `json:"by,omitempty"`  // name of the person who asked, as given
	Subjects []warehouse.Subject `json:"subjects"`      // instances, and those that they called

	// How much there was when it was first looked; nil before that.
	Found *Found `json:"found,omitempty"`

	// What has gone, when it is done.
	Records  uint64                    `json:"records"`  // rows of flow.records
	Lanes    []warehouse.ForgottenLane `json:"lanes"`    // by which these came in
	Messages int                       `json:"messages"` // of the lanes, which hold something else in their place now
	Copies   int                       `json:"copies"`   // of records in these, repeats and dead letters included

	Recounted    []string `json:"recounted"`               // days whose counters were made again
	NotRecounted []string `json:"not_recounted,omitempty"` // days of which records have expired: the counters keep what was forgotten

	OutOfReach []string `json:"out_of_reach"`
}

// Found is how much there was in tables and dead letters.
type Found struct {
	Records     uint64            `json:"records"`
	Tables      map[string]uint64 `json:"tables"` // rows, by fold
	DeadLetters int               `json:"dead_letters"`
}

// outOfReach is what cannot be deleted from here.
var outOfReach = []string{
	"backups of ClickHouse and NATS",
	"files that were exported, and databases that sluice rebuild has made",
	"the engine that sent the records, and its other exporters",
	"blocks of the file system that are free again; old parts of tables, which ClickHouse removes within minutes",
}

func (r *Receipt) text() string {
	text, _ := json.Marshal(r) // plain members
	return string(text)
}

func parse(kept warehouse.Receipt) (*Receipt, error) {
	r := new(Receipt)
	if err := json.Unmarshal([]byte(kept.Text), r); err != nil {
		return nil, fmt.Errorf("read receipt %s: %w", kept.ID, err)
	}
	return r, nil
}
