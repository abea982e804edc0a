package camunda

import (
	"context"
	"math/rand/v2"
	"time"
)

// Log is what a partition has written, in order, counted from 0.
//
// Len is how many records there are, and whether there will be no more. Read
// gives the records from..to-1, each one JSON object, valid until the next call.
type Log interface {
	Len() (n int, whole bool)
	Read(from, to int) ([][]byte, error)
}

// Elasticsearch is where bulks go. *Client is the real one.
//
// Both return nil once they are acknowledged. After any error the exporter calls
// again, with the same records and perhaps more of them.
type Elasticsearch interface {
	Templates(ctx context.Context) error
	Bulk(ctx context.Context, body []byte) error
}

// Config says which partition to export, and how. The defaults are those of
// Camunda.
type Config struct {
	Partition int64
	Log       Log
	To        Elasticsearch
	Random    *rand.Rand // decides when a leader that has not noticed posts

	BulkRecords int           // flush at so many records; default 1000
	BulkBytes   int           // or at so many bytes of them; default 10 MiB
	BulkDelay   time.Duration // and every so often whatever there is; default 5 s

	Backoff     time.Duration // after the first failure, doubled by each; default 2 s
	BackoffMost time.Duration // default 10 s

	Followers time.Duration // between two messages to the followers about what is acknowledged; default 15 s
	Snapshot  time.Duration // between two snapshots, which keep it on the broker's disk; default 5 min
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		of        *time.Duration
		otherwise time.Duration
	}{
		{&c.BulkDelay, 5 * time.Second}, {&c.Backoff, 2 * time.Second}, {&c.BackoffMost, 10 * time.Second},
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
