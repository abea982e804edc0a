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
	Load       loadCmd     `cmd:"" help:"Post realistic records and measure the answers."`
	Migrate    migrate     `cmd:"" help:"Bring the ClickHouse schema up to date, or say how long tables keep rows."`
	Lanes      lanes       `cmd:"" help:"List lanes and the sources on them, add a lane, move a source, or say which NATS servers hold them."`
	Dead       dead        `cmd:"" help:"List, show, replay or drop what could not be stored."`
	Verify     verifyCmd   `cmd:"" help:"Prove that every accepted record is stored once, set aside, or waiting."`
	Console    run.Console `cmd:"" help:"Serve the web page of operators and analysts."`
	Lint       lintCmd     `cmd:"" help:"Look for what is wrong in what engines send."`
	Recount    recountCmd  `cmd:"" help:"Make the counters of days again from the records, while records flow."`
	Rebuild    rebuildCmd  `cmd:"" help:"Make the tables again from what the lanes hold, in another database, and compare."`
	Forget     forgetCmd   `cmd:"" help:"Remove an instance, or all instances of a person, from tables, lanes and dead letters, with a receipt."`
	Backup     backupCmd   `cmd:"" help:"Copy a running installation to a folder: lanes, positions, users and fields, tables, all of one moment."`
	Restore    restoreCmd  `cmd:"" help:"Make an installation of a backup, and say from where sources must send again."`
	Export     exportCmd   `cmd:"" help:"Write process instances as an event log for process mining: XES, OCEL, Parquet, CSV or NDJSON."`
	Capacity   capacityCmd `cmd:"" help:"Say how many machines a rate of records takes, and what breaks first."`
	Tail       tail        `cmd:"" help:"Print the records of a lane as JSON, one per line."`
	Token      token       `cmd:"" help:"Make an access token, or hash one for the token file."`
}

func main() {
	os.Exit(run.Program("sluice", "Workflow records into ClickHouse, each exactly once.", &commands{}))
}
