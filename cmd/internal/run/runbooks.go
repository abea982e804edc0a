package run

import (
	"log/slog"
	"strings"
)

// runbooks names the page of docs/runbooks for a warning or an error: the first of which a text is
// in the message. All others are of the index of the pages.
var runbooks = []struct {
	page  string
	texts []string
}{
	{"ChangesHalted", []string{"applying changes"}},
	{"LaneHalted", []string{" halted: ", "claim", "a lane was deleted", "a rejected piece"}},
	{"LagOld", []string{" failed, retrying", "inserting fewer rows", "an earlier insert", "consumer silent"}},
	{"LaneWithoutOwner", []string{"lease", "releasing a lane", "the work on a lane ended"}},
	{"RecordsLostInTable", []string{"the table is missing stored records"}},
	{"DeadLettersTight", []string{"fill the dead-letter stream"}},
	{"DeadLetters", []string{"dead-lettered"}},
	{"ClientRejected", []string{"client rejected", "log-in failed", "connection refused", "of another site", "sign-in failed"}},
	{"TokensStale", []string{"token file", "JWT", "JSON Web Key Set", "TLS certificate"}},
	{"ApiErrors", []string{"request failed", "request panicked"}},
	{"EngineDied", []string{"the engine "}},
	{"DiskAlmostFull", []string{"NATS cannot write to its folder"}},
	{"DiskBudgetAlmostUsedUp", []string{"purge lanes"}},
	{"ServerDown", []string{"NATS ", "waiting for ", "look-up of lanes failed", "ClickHouse does not answer"}},
	{"lanes", []string{"the bucket of sources", "entry of a source"}},
}

// runbook is the page for a message.
func runbook(message string) slog.Attr {
	for _, r := range runbooks {
		for _, text := range r.texts {
			if strings.Contains(message, text) {
				return slog.String("runbook", "docs/runbooks/"+r.page+".md")
			}
		}
	}
	return slog.String("runbook", "docs/runbooks/README.md")
}
