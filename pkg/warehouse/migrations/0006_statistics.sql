-- Newer servers keep statistics of every column of a new table, made anew at
-- each insert and each merge, for plans of joins that nobody makes here.
{{if .KeepsStatistics}}
ALTER TABLE {{.Table "records"}}{{.OnCluster}} MODIFY SETTING auto_statistics_types = '';
ALTER TABLE {{.Table "counts_1m"}}{{.OnCluster}} MODIFY SETTING auto_statistics_types = '';
ALTER TABLE {{.Table "process_instances"}}{{.OnCluster}} MODIFY SETTING auto_statistics_types = '';
ALTER TABLE {{.Table "element_instances"}}{{.OnCluster}} MODIFY SETTING auto_statistics_types = '';
ALTER TABLE {{.Table "jobs"}}{{.OnCluster}} MODIFY SETTING auto_statistics_types = '';
ALTER TABLE {{.Table "incidents"}}{{.OnCluster}} MODIFY SETTING auto_statistics_types = '';
{{end}}
