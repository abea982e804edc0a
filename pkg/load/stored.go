package load

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// storedPatience is how long the number of records stored may stand still.
const storedPatience = time.Minute

// StoredIn waits, for Config.Stored, until the ClickHouse whose HTTP has this
// address, such as 127.0.0.1:8123, holds exactly the records acknowledged: as
// many, each once, with the same sums. The error wraps ErrNotStored when it
// holds more or others, or no further ones for a minute.
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
				return fmt.Errorf("%w: %d of %d for a minute", ErrNotStored, last, acked.Records)
			}
			if last < acked.Records && !sleep(ctx, 50*time.Millisecond) {
				return ctx.Err()
			}
		}
		got, err := query(ctx, address, acked.Query())
		if err == nil && got != acked.Row() {
			err = fmt.Errorf("%w: %s gives %q, acknowledged was %q", ErrNotStored, acked.Query(), got, acked.Row())
		}
		return err
	}
}

// query asks a ClickHouse over HTTP for rows separated by tabs.
func query(ctx context.Context, address, sql string) (string, error) {
	target := "http://" + address + "/?query=" + url.QueryEscape(sql)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask ClickHouse: %w", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("ClickHouse answered %s: %.300s", res.Status, body)
	}
	return strings.TrimSpace(string(body)), err
}
