package run

import (
	"fmt"
	"os"
	"runtime/debug"

	"sluice/pkg/api"
	"sluice/pkg/ingest"
)

// beside is the share of a process's memory that Go's collector does not see,
// as one part of so many: mostly the program's own code, as far as it is used.
const beside = 8

// CollectOften lets the heap grow by half between two collections, and not to
// its double as Go does by itself (docs/decisions/0013-go-runtime.md).
// A GOGC in the environment stands.
func CollectOften() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

// BoundMemory makes Go's collector work the harder the nearer the process comes
// to memory bytes. It is half of the bound. The other half is that the parts
// hold less than that on purpose: their budgets are shares of the same number.
// A GOMEMLIMIT in the environment stands.
func BoundMemory(memory int64) error {
	const least = 64 << 20
	if memory < least {
		return fmt.Errorf("--memory %d: the least is %d", memory, least)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memory - memory/beside)
	}
	CollectOften()
	return nil
}

// inFlight is what bodies that are being read or published may take. A body is
// in memory up to three times at once: as it was sent, parsed, and as messages
// on their way.
func (a *API) inFlight() (int64, error) {
	c := a.Config
	share := c.InFlightBytes
	if share == 0 {
		share = a.Memory/4 + Bulks(c)
	}
	if c.Elastic != "" && share < 4*int64(c.BulkBytes) {
		return 0, fmt.Errorf("%d bytes are too few for bodies in flight: four times --max-bulk are %d", share, 4*int64(c.BulkBytes))
	}
	if least := 4 * int64(c.BodyBytes); share < least {
		return 0, fmt.Errorf("%d bytes are too few for bodies in flight, which get --max-in-flight or else a quarter of --memory: four times --max-body are %d", share, least)
	}
	return share, nil
}

// Bulks is what bodies may take besides, where bulks are taken and nothing else
// is said.
func Bulks(c api.Config) int64 {
	if c.Elastic == "" || c.InFlightBytes > 0 {
		return 0
	}
	return 4 * int64(c.BulkBytes)
}

// blocks is what the blocks of all lanes may hold together when they are
// closed. There are two of each lane, with room to grow, and one is on its way
// to ClickHouse in another form: five times as much or so. One token of
// ClickHouse covers no more than that, however much memory there is.
func (i *Ingester) blocks() int { return int(min(i.Memory/8, ingest.MaxBlockBytes)) }

// identities is what may be held of the identities of stored records.
func (i *Ingester) identities() int {
	if i.Ingest.KnownBytes > 0 {
		return i.Ingest.KnownBytes
	}
	return int(i.Memory / 16)
}

// requests is what may be held of requests whose records have no identity of
// their own: four million of them by default.
func (i *Ingester) requests() int { return int(i.Memory / 8) }

// readAhead is what may be read of each of so many lanes before it is decoded.
func (i *Ingester) readAhead(lanes int) int { return int(i.Memory/32) / max(lanes, 1) }
