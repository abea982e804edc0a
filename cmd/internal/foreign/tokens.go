package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"sluice/pkg/auth"
	"sluice/pkg/flow"
)

// tokens guards the token file, to which clients add sources while they run.
var tokens sync.Mutex

// addToken adds a source for a client if it is new, and waits until its token is
// accepted.
func addToken(ctx context.Context, env map[string]string, source, token string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for attempt := 0; ; attempt++ {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, env["ELASTIC"]+"/", nil)
		if err != nil {
			return err
		}
		req.SetBasicAuth(source, token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		res.Body.Close()
		if res.StatusCode == http.StatusOK {
			return nil
		}
		if attempt == 0 {
			entry := auth.Entry{Subject: source, Source: source, SHA256: auth.Digest(token), Scopes: []flow.Scope{flow.ScopeRecordsWrite}}
			if err := appendTo(env["TOKENS"], entry.Line()+"\n"); err != nil {
				return err
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the token of %s is not accepted: %s", source, res.Status)
		}
	}
}

func appendTo(name, lines string) error {
	tokens.Lock()
	defer tokens.Unlock()
	file, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(lines)
	return errors.Join(err, file.Close())
}

func ship(ctx context.Context, _ string, env map[string]string) error {
	return addToken(ctx, env, "shippers", env["SHIPPERS_TOKEN"])
}
