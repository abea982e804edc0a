// Package camunda plays Camunda's Elasticsearch exporter of one partition: how
// it cuts its bulks, how it repeats them, and where it goes on after its broker
// was killed, lost its leadership or was restored from a backup. What it does
// stands in docs/camunda.md, in the terms of the exporters of 8.3 to 8.9.
//
//	log ─▶ bulk: 1000 records, 10 MiB or 5 s ─▶ POST /_bulk, one at a time
//	                ▲                                │ taken: acknowledged
//	                └── all of it again, and more ◀──┘ anything else
//
// What is acknowledged is known to the followers after some seconds, and to the
// broker's own disk after minutes. So the next leader of the partition sends
// what was taken long ago once more, in other bulks.
package camunda
