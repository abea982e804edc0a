package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"time"
)

// browser is one that is signed in.
type browser struct {
	client *http.Client
	page   string // URL of the console
}

func signIn(ctx context.Context, page, token string) (*browser, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	b := &browser{page: page, client: &http.Client{Jar: jar, Transport: &http.Transport{}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, page+"/sign-in", strings.NewReader(url.Values{"token": {token}}.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := b.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("sign in: %s", res.Status)
	}
	return b, nil
}

// get reads a page, and says how many milliseconds that took.
func (b *browser) get(ctx context.Context, path string) (ms float64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.page+path, nil)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	res, err := b.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %s", path, res.Status)
	}
	return time.Since(began).Seconds() * 1000, nil
}

// follow has the first page open until ctx ends, and counts what it is told.
func (b *browser) follow(ctx context.Context, told *int64) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.page+"/now/events", nil)
	if err != nil {
		return err
	}
	res, err := b.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	buffer := make([]byte, 16<<10)
	for {
		n, err := res.Body.Read(buffer)
		*told += int64(strings.Count(string(buffer[:n]), "event: now"))
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("an open page: %w", err)
		}
	}
}
