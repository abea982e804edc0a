// Package camunda simulates Camunda's Elasticsearch exporter of one partition: how it forms
// and retries bulks, and where it resumes after its broker was killed, lost its leadership,
// or was restored from a backup. docs/camunda.md describes it in the terms of the exporters
// of 8.3 to 8.9.
//
//	log ─▶ bulk: 1000 records, 10 MiB or 5 s ─▶ POST /_bulk, one at a time
//	                ▲                                │ taken: acknowledged
//	                └── all of it again, and more ◀──┘ anything else
//
// Followers learn the acknowledged position after seconds, and the broker's own disk has it
// after minutes. So the next leader of the partition resends records acknowledged long ago,
// in other bulks.
package camunda
