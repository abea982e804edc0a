// Package camunda simulates Camunda's Elasticsearch exporter of one partition: its bulks
// and retries, and where it resumes after its broker was killed, lost its leadership, or
// was restored from a backup. docs/camunda.md describes the exporters of 8.3 to 8.9.
//
//	log ─▶ bulk: 1000 records, 10 MiB or 5 s ─▶ POST /_bulk, one at a time
//	                ▲                                │ taken: acknowledged
//	                └── all of it again, and more ◀──┘ anything else
//
// Followers have the acknowledged position after seconds, and the broker's disk after
// minutes. So the next leader resends records that were acknowledged earlier, in other
// bulks.
package camunda
