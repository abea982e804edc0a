-- The database, and the record of which migrations it has had. Runs every time.
CREATE DATABASE IF NOT EXISTS {{.Database}}{{.OnCluster}};

-- Which migrations the database has had.
CREATE TABLE IF NOT EXISTS {{.Database}}.migrations{{.OnCluster}}
(
    version    UInt32, -- number of the file
    name       String, -- of the file
    checksum   String, -- of the file as it stands in the source
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') -- UTC
)
ENGINE = {{.EngineEverywhere "ReplacingMergeTree" "migrations"}}
ORDER BY version
SETTINGS {{.Durable}};
