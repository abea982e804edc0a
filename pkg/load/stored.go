package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// ErrNotStored means that the stored records are not exactly the acknowledged ones.
var ErrNotStored = errors.New("the stored records are not exactly the acknowledged ones")

// storedPatience bounds the time without newly stored records.
const storedPatience = time.Minute

// StoredIn waits, for Config.Stored, until the ClickHouse with this HTTP address, such as
// 127.0.0.1:8123, has exactly the acknowledged records: the same number, ids, and sums. The
// error wraps ErrNotStored if it has more or others, or no new ones for a minute.
func StoredIn(address string) func(context.Context, Totals) error {
	return func(ctx context.Context, acked Totals) error {
		if acked.Records == 0 {
			return nil
		}
		count := fmt.Sprintf("SELECT count() FROM flow.records WHERE position BETWEEN %d AND %d", acked.MinPosition, acked.MaxPosition)
		var last int64
		for moved := time.Now(); last < acked.Records; {
			text, err := query(ctx, address, count)
			if err != nil {
				return err
			}
			var now int64
			if _, err := fmt.Sscan(text, &now); err != nil {
				return fmt.Errorf("ClickHouse answered %q, not a number: %w", text, err)
			}
			if now != last {
				last, moved = now, time.Now()
			}
			if time.Since(moved) > storedPatience {
				return fmt.Errorf("%w: %d of %d, no new ones for a minute", ErrNotStored, last, acked.Records)
			}
			if last < acked.Records && !sleep(ctx, 50*time.Millisecond) {
				return ctx.Err()
			}
		}
		got, err := query(ctx, address, acked.Query())
		if err == nil && got != acked.Row() {
			err = fmt.Errorf("%w: %s gives %q, want %q", ErrNotStored, acked.Query(), got, acked.Row())
		}
		return err
	}
}

// StoredAt waits, for Config.Stored, until the api reports that all records posted under
// the tokens of cfg are queryable, by an empty request with a wait. The error wraps
// ErrNotStored after five minutes.
func StoredAt(cfg Config) func(context.Context, Totals) error {
	return func(ctx context.Context, acked Totals) error {
		target, err := cfg.target()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeoutCause(ctx, apiPatience, fmt.Errorf("%w after %v", ErrNotStored, apiPatience))
		defer cancel()
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg.TLS}}
		defer client.CloseIdleConnections()
		for _, token := range append([]string{cfg.Token}, cfg.Tokens...) {
			for stored := false; !stored; {
				if stored, err = storedNow(ctx, client, target.String(), token); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

const apiPatience = 5 * time.Minute

// storedNow sends one request, which waits up to 30 s. An answer without the result is an
// error, unless it is retryable.
func storedNow(ctx context.Context, client *http.Client, url, token string) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("[]"))
	if err != nil {
		return false, err
	}
	req.Header.Set("Prefer", "wait=30")
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := client.Do(req)
	if err == nil {
		defer res.Body.Close()
		switch said := res.Header.Get("Sluice-Stored"); {
		case res.StatusCode == http.StatusOK && said != "":
			return said == "true", nil
		case !retryable(res.StatusCode):
			return false, fmt.Errorf("wait for the api to store all: %s, Sluice-Stored %q", res.Status, said)
		}
	}
	if !sleep(ctx, time.Second) {
		return false, context.Cause(ctx)
	}
	return false, nil
}

// query runs a query over HTTP and returns TabSeparated rows.
func query(ctx context.Context, address, sql string) (string, error) {
	target := "http://" + address + "/?query=" + url.QueryEscape(sql)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("query ClickHouse: %w", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("ClickHouse answered %s: %.300s", res.Status, body)
	}
	return strings.TrimSpace(string(body)), err
}
