package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"sluice/pkg/auth"
	"sluice/pkg/flow"
)

type token struct {
	New  tokenNew  `cmd:"" help:"Print a new token and its entry for the token file."`
	Hash tokenHash `cmd:"" help:"Read a token from standard input and print its SHA-256 for the token file."`
}

type tokenNew struct {
	Subject string        `required:"" help:"Subject: the user or engine that the token identifies."`
	Source  string        `help:"Source: the engine whose records it posts, with one numbering of records. All tokens of an engine have the same source; empty: the subject."`
	Scope   []string      `default:"records:write" help:"Scopes, comma-separated: records:write, user:write, fields:write, read, admin."`
	Table   []string      `help:"Dataset tables it may change, comma-separated; all when empty."`
	Tenant  []string      `help:"Tenants whose records it may post, comma-separated; all when empty. Records without one belong to <default>."`
	Expires time.Duration `help:"Lifetime of the token, such as 720h; 0: unlimited."`
	Rate    float64       `help:"Maximum requests per second; 0: the api's limit."`
}

func (c *tokenNew) Run() error {
	secret := auth.NewToken()
	entry := auth.Entry{Subject: c.Subject, Source: c.Source, SHA256: auth.Digest(secret), Rate: c.Rate, Tables: c.Table, Tenants: c.Tenant}
	for _, s := range c.Scope {
		entry.Scopes = append(entry.Scopes, flow.Scope(s))
	}
	if c.Expires > 0 {
		entry.Expires = time.Now().Add(c.Expires)
	}
	if err := entry.Check(); err != nil {
		return err
	}
	fmt.Printf("token (shown once, give it to %s):\n%s\n\nline for the token file of the api (--tokens):\n%s\n", c.Subject, secret, entry.Line())
	return nil
}

type tokenHash struct{}

func (tokenHash) Run() error {
	line, err := bufio.NewReader(io.LimitReader(os.Stdin, 64<<10)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	secret := strings.TrimSpace(line)
	if secret == "" {
		return errors.New("no token on standard input: write the token as its first line")
	}
	fmt.Println(auth.Digest(secret))
	return nil
}
