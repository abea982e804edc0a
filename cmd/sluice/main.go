// Command sluice runs everything on one machine (sluice up) and holds the
// operator's commands.
package main

import (
	"os"

	"sluice/cmd/internal/run"
)

type commands struct {
	run.Logging

	Up         up          `cmd:"" help:"Run everything on this machine: NATS, ClickHouse, api and ingester."`
	Clickhouse clickhouse  `cmd:"" help:"Run the embedded ClickHouse engine alone."`
	Nats       natsCmd     `cmd:"" help:"Run the embedded NATS server alone."`
	Load       loadCmd     `cmd:"" help:"Post realistic records and measure rates and latencies."`
	Migrate    migrate     `cmd:"" help:"Bring the ClickHouse schema up to date, or set the retention of tables."`
	Lanes      lanes       `cmd:"" help:"List lanes and their sources, add a lane, move a source, or place streams on NATS servers."`
	Dead       dead        `cmd:"" help:"List, show, replay or drop dead letters."`
	Verify     verifyCmd   `cmd:"" help:"Check that every accepted record is stored once, deduplicated, dead-lettered, forgotten, or in the backlog."`
	Console    run.Console `cmd:"" help:"Serve the web console."`
	Lint       lintCmd     `cmd:"" help:"Find modelling and exporter faults in the stored records."`
	Recount    recountCmd  `cmd:"" help:"Recompute daily counters from the records, online."`
	Rebuild    rebuildCmd  `cmd:"" help:"Recreate the tables from the lanes, in another database, and compare."`
	Forget     forgetCmd   `cmd:"" help:"Remove an instance, or all instances of a person, from tables, lanes and dead letters, with a receipt."`
	Backup     backupCmd   `cmd:"" help:"Copy a running installation to a folder: a consistent snapshot of lanes, lane states, users, dataset fields, and tables."`
	Restore    restoreCmd  `cmd:"" help:"Restore an installation from a backup, and print the positions from which sources must resend."`
	Ask        askCmd      `cmd:"" help:"Run an analyst question, such as durations or bottlenecks; without a name, list them."`
	Export     exportCmd   `cmd:"" help:"Write process instances as an event log for process mining: CSV, NDJSON, Parquet, XES, or OCEL."`
	Capacity   capacityCmd `cmd:"" help:"Print how many machines a rate of records needs, and the first bottleneck."`
	Tail       tail        `cmd:"" help:"Print the records of a lane as JSON, one per line."`
	Source     sourceCmd   `cmd:"" help:"Add, list, or remove engines that may post, or rotate their tokens."`
	Token      token       `cmd:"" help:"Create an access token, or hash one for the token file."`
}

func main() {
	os.Exit(run.Program("sluice", "Workflow records into ClickHouse, each exactly once.", &commands{}))
}
