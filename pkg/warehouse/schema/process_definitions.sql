-- Deployed versions of processes with their BPMN XML, one row each. Every
-- partition writes them, with the same key; DELETING and DELETED have their own
-- key on each partition, and name the version in processDefinitionKey. Rows never
-- expire, so that an old instance still has its model.
TABLE process_definitions
source
key key(Int64) = definition -- processDefinitionKey, or key of the record where that is missing
tenant_id
bpmn_process_id max(Text) -- bpmnProcessId
version max(Int64?) -- version
resource_name max(String) = JSONExtractString(r.extra, 'resourceName') -- file it came in (resourceName)
xml max(String) CODEC(ZSTD(3)) = bpmn -- BPMN (resource)
deployed_at min(Time?) = if(r.intent = 'CREATED', at, NULL) -- UTC (first CREATED)
deleted_at max(Time?) = if(r.intent = 'DELETED', at, NULL) -- UTC, last partition (DELETED); NULL while it is deployed
elements set(String) = groupUniqArrayArray(arrayMap(t -> concat(t.1, ' ', t.2), arrayFilter(t -> t.1 != '', tags))) -- id, a space, and name of all that has a name in the XML
SHARD BY source, ''
WITH
    {{.At}} AS at, tryBase64Decode(JSONExtractString(r.extra, 'resource')) AS bpmn,
    arrayMap(tag -> (extract(tag, '\\sid="([^"]*)"'), decodeXMLComponent(extract(tag, '\\sname="([^"]*)"'))), extractAll(bpmn, '<[\\w:]+\\s(?:[^>]*\\s)?name="[^"]+"[^>]*>')) AS tags,
    if(r.process_definition_key > 0, assumeNotNull(r.process_definition_key), r.key) AS definition
FEED flow.records AS r
    WHERE r.value_type = 'PROCESS' AND r.record_type = 'EVENT' AND r.key > 0

-- One row for each deployed version of a process.
VIEW v_process_definitions
source
process_definition_key Int64 = key -- definition (processDefinitionKey)
tenant_id
bpmn_process_id Text -- process (bpmnProcessId)
version Int64? -- version
name String = substring(arrayFirst(e -> startsWith(e, concat(d.bpmn_process_id, ' ')), elements) AS named, position(named, ' ') + 1) -- of the process, from its XML
resource_name xml deployed_at deleted_at
FROM flow.process_definitions AS d FINAL

-- One row for each element with a name in the BPMN of its process, and for each process with a name. The latest version determines the name. Other views show it as element_name and process_name.
VIEW v_element_names
source bpmn_process_id
element_id = substringIndex(e, ' ', 1) -- element in the BPMN model (elementId), or the process itself (bpmnProcessId)
name String = argMax(substring(e, position(e, ' ') + 1), ifNull(version, 0)) -- its name
FROM flow.process_definitions
    ARRAY JOIN elements AS e
    GROUP BY source, bpmn_process_id, element_id
