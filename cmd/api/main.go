// Command api takes records and changes in over HTTP and answers once they are
// durable in the stream.
package main

import (
	"os"

	"sluice/cmd/internal/run"
)

func main() {
	os.Exit(run.Program("api", "Take workflow records in over HTTP and keep them in NATS JetStream.", &run.API{}))
}
