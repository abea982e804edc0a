package run

import (
	"fmt"
	"os"
	"runtime/debug"

	"sluice/pkg/api"
	"sluice/pkg/ingest"
)

// outsideHeap: 1/outsideHeap of a process's memory is outside the Go heap, mostly its own
// code.
const outsideHeap = 8

// CollectOften sets GOGC to 50 unless the environment sets it
// (docs/decisions/0013-go-runtime.md).
func CollectOften() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

// BoundMemory sets GOMEMLIMIT unless the environment sets it. The limit only makes the
// garbage collector run more often; the bound holds because the budgets of all parts are
// shares of the same number.
func BoundMemory(memory int64) error {
	const minMemory = 64 << 20
	if memory < minMemory {
		return fmt.Errorf("--memory %d: minimum %d", memory, minMemory)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memory - memory/outsideHeap)
	}
	return nil
}

// inFlight is the byte budget of bodies being read or published. A body is in memory up
// to three times: as received, parsed, and as messages in flight.
func (a *API) inFlight() (int64, error) {
	c := a.Config
	share := c.InFlightBytes
	if share == 0 {
		share = a.Memory/4 + Bulks(c)
	}
	if c.Elastic != "" && share < 4*int64(c.BulkBytes) {
		return 0, fmt.Errorf("--max-in-flight is %d bytes: minimum four times --max-bulk, %d", share, 4*int64(c.BulkBytes))
	}
	if minimum := 4 * int64(c.BodyBytes); share < minimum {
		return 0, fmt.Errorf("--max-in-flight, by default a quarter of --memory, is %d bytes: minimum four times --max-body, %d", share, minimum)
	}
	return share, nil
}

// Bulks is the additional budget for bulk bodies of exporters, unless --max-in-flight
// sets the total.
func Bulks(c api.Config) int64 {
	if c.Elastic == "" || c.InFlightBytes > 0 {
		return 0
	}
	return 4 * int64(c.BulkBytes)
}

// blocks is the byte budget of the closed blocks of all lanes. A lane takes up to five times
// as much: two blocks with room to grow, and one encoded for a compressed connection.
// One deduplication token covers at most MaxBlockBytes.
func (i *Ingester) blocks() int { return int(min(i.Memory/8, ingest.MaxBlockBytes)) }

// identities is the byte budget of the deduplication index.
func (i *Ingester) identities() int {
	if i.Ingest.KnownBytes > 0 {
		return i.Ingest.KnownBytes
	}
	return int(i.Memory / 16)
}

// requests is the byte budget for deduplicating requests whose records have no
// deduplication key: four million requests by default.
func (i *Ingester) requests() int { return int(i.Memory / 8) }

// readAhead is the byte budget per lane of messages not yet decoded.
func (i *Ingester) readAhead(lanes int) int { return int(i.Memory/32) / max(lanes, 1) }
