-- Merges took more than half of the engine's work: left to itself it joins few
-- parts at a time, so that a row is written again and again. Ten at once leave
-- a few tens of parts and a third less work (docs/decisions/0027).
{{with .Merging}}
ALTER TABLE {{$.Table "records"}}{{$.OnCluster}} MODIFY SETTING {{.}};
ALTER TABLE {{$.Table "counts_1m"}}{{$.OnCluster}} MODIFY SETTING {{.}};
ALTER TABLE {{$.Table "process_instances"}}{{$.OnCluster}} MODIFY SETTING {{.}};
ALTER TABLE {{$.Table "element_instances"}}{{$.OnCluster}} MODIFY SETTING {{.}};
ALTER TABLE {{$.Table "jobs"}}{{$.OnCluster}} MODIFY SETTING {{.}};
ALTER TABLE {{$.Table "incidents"}}{{$.OnCluster}} MODIFY SETTING {{.}};
{{end}}
