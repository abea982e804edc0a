-- The database, and the record of which migrations it has had. Runs every time.
CREATE DATABASE IF NOT EXISTS {{.Database}}{{.OnCluster}};

CREATE TABLE IF NOT EXISTS {{.Database}}.migrations{{.OnCluster}}
(
    version    UInt32,
    name       String,
    checksum   String, -- of the file as it stands in the source
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC')
)
ENGINE = {{.EngineEverywhere "ReplacingMergeTree" "migrations"}}
ORDER BY version
SETTINGS {{.Durable}};
