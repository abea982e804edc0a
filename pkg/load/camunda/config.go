package camunda

import (
	"context"
	"math/rand/v2"
	"time"
)

// Log is the records of a partition, in order, counted from 0.
//
// Len returns their number, and whether the log is complete. Read returns the records
// from..to-1, each one JSON object, valid until the next call.
type Log interface {
	Len() (n int, whole bool)
	Read(from, to int) ([][]byte, error)
}

// Elasticsearch receives bulks. *Client is the real one.
//
// Both methods return nil once acknowledged. After any error the exporter retries, with the
// same records and perhaps more.
type Elasticsearch interface {
	Templates(ctx context.Context) error
	Bulk(ctx context.Context, body []byte) error
}

// Config configures an Exporter. The defaults are Camunda's.
type Config struct {
	Partition int64
	Log       Log
	To        Elasticsearch
	Random    *rand.Rand // decides when a stale leader posts

	BulkRecords int           // flush at this many records; default 1000
	BulkBytes   int           // or at this many bytes; default 10 MiB
	BulkDelay   time.Duration // and periodically; default 5 s

	Backoff    time.Duration // after the first failure, doubled by each; default 2 s
	MaxBackoff time.Duration // limit of Backoff; default 10 s

	Followers time.Duration // interval of sending the acknowledged position to followers; default 15 s
	Snapshot  time.Duration // interval of snapshots, which persist that position; default 5 min
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		of        *time.Duration
		otherwise time.Duration
	}{
		{&c.BulkDelay, 5 * time.Second}, {&c.Backoff, 2 * time.Second}, {&c.MaxBackoff, 10 * time.Second},
		{&c.Followers, 15 * time.Second}, {&c.Snapshot, 5 * time.Minute},
	} {
		if *d.of == 0 {
			*d.of = d.otherwise
		}
	}
	if c.BulkRecords == 0 {
		c.BulkRecords = 1000
	}
	if c.BulkBytes == 0 {
		c.BulkBytes = 10 << 20
	}
	if c.Random == nil {
		c.Random = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	return c
}
