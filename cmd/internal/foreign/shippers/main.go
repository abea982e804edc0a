// Command shippers posts workflow records with the Go clients of Elasticsearch
// and OpenSearch, each with its own bulk indexer, to where Sluice speaks as they
// do. It is a module of its own, so that the product does not depend on them. It
// prints a line for each check, as all clients of make foreign do.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/elastic/go-elasticsearch/v8"
	"github.com/elastic/go-elasticsearch/v8/esutil"
	"github.com/opensearch-project/opensearch-go/v4"
	"github.com/opensearch-project/opensearch-go/v4/opensearchapi"
	"github.com/opensearch-project/opensearch-go/v4/opensearchutil"
)

// documents is how many a bulk indexer stores.
const documents = 100_000

// shipper stores documents of a partition: how many it has, and how many of
// them it says were refused.
type shipper func(ctx context.Context, partition int) (stored, failed uint64, err error)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	failed := false
	for i, s := range []struct {
		name string
		ship shipper
	}{
		{"esutil.BulkIndexer stores 100 000 records", elastic(false)},
		{"esutil.BulkIndexer, compressed", elastic(true)},
		{"opensearchutil.BulkIndexer stores 100 000 records", openSearch},
	} {
		if err := check(ctx, i+1, s.ship); err != nil {
			failed = true
			fmt.Printf("FAIL\t%s\t%s\n", s.name, strings.Join(strings.Fields(err.Error()), " "))
			continue
		}
		fmt.Printf("ok\t%s, sent again: still 100 000\n", s.name)
	}
	if failed {
		os.Exit(1)
	}
}

// check ships the same documents twice, and looks what is stored.
func check(ctx context.Context, partition int, ship shipper) error {
	for range 2 {
		stored, failed, err := ship(ctx, partition)
		if err != nil {
			return err
		}
		if stored != documents || failed != 0 {
			return fmt.Errorf("the client says that %d are stored and %d failed, want all of %d", stored, failed, documents)
		}
		if err := settled(ctx); err != nil {
			return err
		}
		const each = "SELECT concat(toString(count()), ' ', toString(uniqExact(position)), ' ', toString(max(position))) FROM flow.records WHERE source = 'shippers' AND partition_id = %d"
		want := fmt.Sprintf("%d %d %d", documents, documents, documents)
		got, err := ask(ctx, fmt.Sprintf(each, partition))
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("rows, positions and the last one are %s, want %s", got, want)
		}
	}
	return nil
}

// settled waits until everything posted so far is stored, or known as repeated.
func settled(ctx context.Context) error {
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Getenv("API")+"/flow/flowRecord/batch", strings.NewReader("[]"))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+os.Getenv("SHIPPERS_TOKEN"))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Prefer", "wait=30")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		res.Body.Close()
		switch said := res.Header.Get("Sluice-Stored"); {
		case said == "true":
			return nil
		case said == "":
			return fmt.Errorf("ask the api whether all is stored: %s", res.Status)
		}
	}
	return ctx.Err()
}

func ask(ctx context.Context, sql string) (string, error) {
	address := fmt.Sprintf("http://%s:%s/?query=%s", os.Getenv("HOST"), os.Getenv("HTTP_PORT"), url.QueryEscape(sql))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, body)
	}
	return strings.TrimSpace(string(body)), err
}

// document is the record of a partition at a position.
func document(partition, position int) []byte {
	return fmt.Appendf(nil, `{"partitionId":%d,"position":%d,"sourceRecordPosition":-1,"key":%d,"timestamp":%d,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","rejectionType":"NULL_VAL","rejectionReason":"","brokerVersion":"8.6.0","recordVersion":1,"value":{"type":"pay","retries":3,"bpmnProcessId":"order","processInstanceKey":%d,"elementId":"pay","variables":{"amount":%d.5}}}`,
		partition, position, partition<<51+position, began.Add(time.Duration(position)*time.Millisecond).UnixMilli(), partition<<51+position/10, position)
}

var began = time.Now().Add(-time.Hour).Truncate(time.Second)

func elastic(compress bool) shipper {
	return func(ctx context.Context, partition int) (stored, failed uint64, err error) {
		client, err := elasticsearch.NewClient(elasticsearch.Config{
			Addresses: []string{os.Getenv("ELASTIC")}, Username: "shipper", Password: os.Getenv("SHIPPERS_TOKEN"), CompressRequestBody: compress,
		})
		if err != nil {
			return 0, 0, err
		}
		if info, err := client.Info(); err != nil || info.IsError() {
			return 0, 0, fmt.Errorf("GET /: %v %v", info, err)
		}
		var refused atomic.Pointer[error]
		indexer, err := esutil.NewBulkIndexer(esutil.BulkIndexerConfig{
			Client: client, Index: "zeebe-record", NumWorkers: 4,
			OnError: func(_ context.Context, err error) { refused.Store(&err) },
		})
		if err != nil {
			return 0, 0, err
		}
		for position := 1; position <= documents; position++ {
			err := indexer.Add(ctx, esutil.BulkIndexerItem{
				Action: "index", DocumentID: fmt.Sprint(partition, "-", position), Body: bytes.NewReader(document(partition, position)),
				OnFailure: func(_ context.Context, _ esutil.BulkIndexerItem, item esutil.BulkIndexerResponseItem, err error) {
					err = errors.Join(err, fmt.Errorf("status %d: %s", item.Status, item.Error.Reason))
					refused.Store(&err)
				},
			})
			if err != nil {
				return 0, 0, err
			}
		}
		if err := indexer.Close(ctx); err != nil {
			return 0, 0, err
		}
		if err := refused.Load(); err != nil {
			return 0, 0, *err
		}
		stats := indexer.Stats()
		return stats.NumFlushed, stats.NumFailed, nil
	}
}

func openSearch(ctx context.Context, partition int) (stored, failed uint64, err error) {
	client, err := opensearchapi.NewClient(opensearchapi.Config{Client: opensearch.Config{
		Addresses: []string{os.Getenv("ELASTIC")}, Username: "shipper", Password: os.Getenv("SHIPPERS_TOKEN"),
	}})
	if err != nil {
		return 0, 0, err
	}
	if _, err := client.Info(ctx, nil); err != nil {
		return 0, 0, fmt.Errorf("GET /: %w", err)
	}
	var refused atomic.Pointer[error]
	indexer, err := opensearchutil.NewBulkIndexer(opensearchutil.BulkIndexerConfig{
		Client: client, Index: "zeebe-record", NumWorkers: 4,
		OnError: func(_ context.Context, err error) { refused.Store(&err) },
	})
	if err != nil {
		return 0, 0, err
	}
	for position := 1; position <= documents; position++ {
		err := indexer.Add(ctx, opensearchutil.BulkIndexerItem{
			Action: "index", DocumentID: fmt.Sprint(partition, "-", position), Body: bytes.NewReader(document(partition, position)),
		})
		if err != nil {
			return 0, 0, err
		}
	}
	if err := indexer.Close(ctx); err != nil {
		return 0, 0, err
	}
	if err := refused.Load(); err != nil {
		return 0, 0, *err
	}
	stats := indexer.Stats()
	return stats.NumFlushed, stats.NumFailed, nil
}
