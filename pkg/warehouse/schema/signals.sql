-- Broadcast signals, and the subscriptions of elements and start events to them, one row
-- each. Every partition writes a broadcast, with the same key. A signal names no instance;
-- its variables are in flow.records only.
TABLE signals
source
value_type key(Text) -- SIGNAL or SIGNAL_SUBSCRIPTION
key tenant_id
name max(Text) = said.1 -- signalName
bpmn_process_id max(Text) -- bpmnProcessId, of a subscription; what it is after a migration is in migrated
process_definition_key max(Int64?) -- processDefinitionKey; likewise
element_id max(Text) = said.2 -- catchEventId; likewise
element_instance_key max(Int64?) = said.3 -- catchEventInstanceKey; -1 of a start event
state max(UInt8) = if(r.intent = 'DELETED', 2, 1) -- 1 BROADCASTED or CREATED, 2 DELETED
created_at min(Time?) = if(r.intent IN ('BROADCASTED', 'CREATED'), at, NULL) -- first BROADCASTED, or CREATED
deleted_at max(Time?) = if(r.intent = 'DELETED', at, NULL) -- UTC (DELETED)
migrated max(String) = {{.Last "MIGRATED" "bpmn_process_id" "process_definition_key" "said.2"}}
INDEX ix_created created_at TYPE minmax GRANULARITY 1
SHARD BY source, ''
WITH
    {{.At}} AS at,
    JSONExtract(r.extra, 'Tuple(signalName String, catchEventId String, catchEventInstanceKey Nullable(Int64))') AS said
FEED flow.records AS r
    WHERE r.value_type IN ('SIGNAL', 'SIGNAL_SUBSCRIPTION') AND r.record_type = 'EVENT' AND r.key > 0

-- One row for each broadcast signal, and for each subscription to a signal.
VIEW v_signals
source key tenant_id
signal_name Text = name -- signalName
kind String = if(broadcast, 'BROADCAST', 'SUBSCRIPTION') -- BROADCAST or SUBSCRIPTION
bpmn_process_id = if(s.migrated = '', s.bpmn_process_id, now[2])
process_definition_key = if(s.migrated = '', s.process_definition_key, toInt64OrNull(now[3]))
element_id = if(s.migrated = '', s.element_id, now[4])
process_name element_name
element_instance_key = nullIf(s.element_instance_key, -1)
state String = multiIf(broadcast, 'BROADCASTED', s.state = 2, 'DELETED', 'WAITING') -- BROADCASTED; WAITING, DELETED of a subscription
broadcast_at Time? = if(broadcast, s.created_at, NULL) -- UTC (first BROADCASTED)
created_at Time? = if(broadcast, NULL, s.created_at) -- UTC (CREATED)
deleted_at
WITH splitByChar('\t', s.migrated) AS now, s.value_type = 'SIGNAL' AS broadcast
FROM flow.signals AS s FINAL
