// Command ingester moves records from the stream into ClickHouse, each exactly
// once, and applies changes to the state store.
package main

import (
	"os"

	"sluice/cmd/internal/run"
)

func main() {
	os.Exit(run.Program("ingester", "Move records from NATS JetStream into ClickHouse, each exactly once.", &run.Ingester{}))
}
