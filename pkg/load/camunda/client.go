package camunda

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Client behaves like the exporters' client: chunked bodies, Basic authentication, a
// timeout of 30 s, and failover to the next server if one is unreachable or answers 502,
// 503, or 504.
type Client struct {
	URLs        []string // of servers, without a path
	User, Token string
	HTTP        *http.Client // default one with a timeout of 30 s
}

const clientTimeout = 30 * time.Second

var plain = &http.Client{Timeout: clientTimeout}

// Templates creates some of the templates that a new leader creates.
func (c *Client) Templates(ctx context.Context) error {
	for _, path := range []string{"/_component_template/zeebe-record", "/_index_template/zeebe-record_job_8.7.1", "/zeebe-record%2A/_settings?allow_no_indices=true"} {
		var answer struct{ Acknowledged bool }
		if err := c.do(ctx, http.MethodPut, path, "application/json", []byte(`{"settings":{}}`), &answer); err != nil {
			return err
		}
		if !answer.Acknowledged {
			return fmt.Errorf("%s was not acknowledged", path)
		}
	}
	return nil
}

func (c *Client) Bulk(ctx context.Context, body []byte) error {
	var answer struct {
		Errors *bool
		Items  []map[string]struct{ Status int }
	}
	if err := c.do(ctx, http.MethodPost, "/_bulk", "application/x-ndjson", body, &answer); err != nil {
		return err
	}
	if answer.Errors == nil || *answer.Errors {
		return errors.New("not every item was accepted")
	}
	if want := bytes.Count(body, []byte("\n")) / 2; len(answer.Items) != want {
		return fmt.Errorf("the answer has %d items, the bulk %d", len(answer.Items), want)
	}
	return nil
}

// do tries the servers in turn until one answers.
func (c *Client) do(ctx context.Context, method, path, contentType string, body []byte, answer any) (err error) {
	for _, url := range c.URLs {
		var away bool
		if away, err = c.ask(ctx, method, url+path, contentType, body, answer); !away {
			return err
		}
	}
	return err
}

// ask sends to one server. away means that another may answer.
func (c *Client) ask(ctx context.Context, method, url, contentType string, body []byte, answer any) (away bool, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, struct{ io.Reader }{bytes.NewReader(body)}) // of unknown length, so chunked
	if err != nil {
		return false, err
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("User-Agent", "elasticsearch-java/8.13.4")
	req.SetBasicAuth(c.User, c.Token)
	client := c.HTTP
	if client == nil {
		client = plain
	}
	res, err := client.Do(req)
	if err != nil {
		return true, err
	}
	defer res.Body.Close()
	said, err := io.ReadAll(res.Body)
	if err != nil {
		return true, err
	}
	switch {
	case res.StatusCode/100 != 2:
		away = res.StatusCode >= 502 && res.StatusCode <= 504
		return away, fmt.Errorf("%s %s: %s: %.300s", method, strings.SplitN(url, "?", 2)[0], res.Status, said)
	case res.Header.Get("X-Elastic-Product") != "Elasticsearch":
		return false, errors.New("the answer is not Elasticsearch's")
	}
	return false, json.Unmarshal(said, answer)
}
