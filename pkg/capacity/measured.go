package capacity

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

// Point is one measured load, on one lane with one api and one ingester.
type Point struct {
	Name        string  `json:"name"`
	Batch       int     `json:"batch"`
	Connections int     `json:"connections"`
	Rate        float64 `json:"rate"` // target records per second; 0: unlimited

	Seconds  float64            `json:"seconds"` // from the first request until all records were queryable
	Records  float64            `json:"records"`
	Requests float64            `json:"requests"`
	Entries  float64            `json:"entries"`  // messages of the log
	Blocks   float64            `json:"blocks"`   // inserts
	Bytes    float64            `json:"bytes"`    // of JSON
	Streamed float64            `json:"streamed"` // bytes of the log
	CPU      map[string]float64 `json:"cpu"`      // core-seconds of each process
}

// Processes in Point.CPU.
const (
	API      = "api"
	NATS     = "nats"
	Ingester = "ingester"
	Engine   = "clickhouse"
	Load     = "load" // the load generator, on the same machine
)

// Measured is the result of `make bench`.
type Measured struct {
	When     string  `json:"when"`
	Command  string  `json:"command"`
	Commit   string  `json:"commit"`
	Machine  string  `json:"machine"`
	Busy     string  `json:"busy"` // load averages of 1, 5 and 15 minutes before
	Cores    float64 `json:"cores"`
	Lane     float64 `json:"lane_rate"`      // highest records per second of one lane, with all processes on one machine
	Sync     float64 `json:"sync_seconds"`   // one write of 4 KiB with fsync
	Table    float64 `json:"table_bytes"`    // of all tables per record
	Merges   float64 `json:"merges"`         // core-seconds of ClickHouse's merges after the loads, relative to those during the loads
	Inserted float64 `json:"insert_bytes"`   // of a record sent to ClickHouse, LZ4: BenchmarkEncode of pkg/warehouse
	Note     string  `json:"note,omitempty"` // figures measured otherwise
	Points   []Point `json:"points"`
}

//go:embed coefficients.json
var embedded []byte

// Embedded is the measurement built into this program.
var Embedded = sync.OnceValues(func() (Measured, error) { return parse(embedded) })

func parse(text []byte) (m Measured, err error) {
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("read coefficients.json: %w", err)
	}
	return m, nil
}

func (m Measured) Write(file string) error {
	text, err := json.MarshalIndent(m, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
