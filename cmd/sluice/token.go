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
	New  tokenNew  `cmd:"" help:"Print a new token and its line for the token file."`
	Hash tokenHash `cmd:"" help:"Read a token from standard input and print its SHA-256 for the token file."`
}

type tokenNew struct {
	Subject string        `required:"" help:"Whom the token stands for."`
	Source  string        `help:"The engine whose records it posts: one numbering of records. Every token of the same engine has the same; empty: the subject."`
	Scope   []string      `default:"records:write" help:"What it allows, comma-separated: records:write, user:write, fields:write, read, admin."`
	Table   []string      `help:"Dataset tables it may touch, comma-separated; all when empty."`
	Tenant  []string      `help:"Tenants whose records it may post, comma-separated; all when empty. Records without one are of <default>."`
	Expires time.Duration `help:"How long it is accepted, such as 720h; 0 for ever."`
	Rate    float64       `help:"Requests per second it may make; 0 as the api is set."`
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
		return errors.New("no token on standard input")
	}
	fmt.Println(auth.Digest(secret))
	return nil
}
