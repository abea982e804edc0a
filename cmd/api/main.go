// Command api accepts records and changes over HTTP and answers once they are durable
// in the stream.
package main

import (
	"os"

	"sluice/cmd/internal/run"
)

func main() {
	os.Exit(run.Program("api", "Accept workflow records over HTTP and publish them to NATS JetStream.", &run.API{}))
}
