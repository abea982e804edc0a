package state_test

import (
	"sluice/pkg/api"
	"sluice/pkg/ingest"
	"sluice/pkg/state"
	"sluice/pkg/warehouse"
)

// What cmd joins fits together.
var (
	_ api.State      = (*state.Store)(nil)
	_ ingest.Changes = (*state.Applier)(nil)
	_ ingest.Audits  = (*state.Auditor)(nil)
	_ state.Audits   = (*warehouse.DB)(nil)
)
