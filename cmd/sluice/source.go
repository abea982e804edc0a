package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"sluice/pkg/auth"
	"sluice/pkg/flow"
)

type sourceCmd struct {
	Add    sourceAdd    `cmd:"" help:"Create a token for an engine, and print the engine's configuration. The api accepts it within a second."`
	List   sourceList   `cmd:"" help:"List sources and their tokens."`
	Rotate sourceRotate `cmd:"" help:"Create a new token for an engine. Its former tokens expire after --keep."`
	Remove sourceRemove `cmd:"" help:"Revoke all tokens of an engine. Its records stay."`
}

type tokenFile struct {
	Data   string `default:"./data" help:"Data folder of sluice up, with the token file and its addresses."`
	Tokens string `help:"Token file of the api; empty: tokens.yaml of --data."`
}

func (t tokenFile) path() string {
	if t.Tokens != "" {
		return t.Tokens
	}
	return filepath.Join(t.Data, tokensName)
}

// edit changes an existing file. A missing one is an error: the folder may be wrong.
func (t tokenFile) edit(change func([]auth.Entry) ([]auth.Entry, error)) error {
	if _, err := os.Stat(t.path()); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no token file %s: name the folder of sluice up with --data, or the file with --tokens", t.path())
	}
	return auth.Edit(t.path(), change)
}

// addresses go into the printed configuration of an engine.
type addresses struct {
	URL       string `default:"http://127.0.0.1:8080" help:"Address of the api, for the printed configuration."`
	Exporters string `default:"http://127.0.0.1:9200" help:"Address of the api for exporters (--elasticsearch), for the printed configuration."`
}

type sourceAdd struct {
	Name    string        `arg:"" help:"Name of the engine: the subject of its token, and the source of its records."`
	Tenant  []string      `help:"Tenants whose records it may post, comma-separated; all when empty. Records without one belong to <default>."`
	Expires time.Duration `help:"Lifetime of the token, such as 720h; 0: unlimited."`
	Rate    float64       `help:"Maximum requests per second; 0: the api's limit."`
	Exclude []string      `sep:"none" help:"Rule for records to exclude, such as valueType=VARIABLE,variable=tmp_*; also by intent and bpmnProcessId. Repeat for more rules."`
	tokenFile
	addresses
}

func (c *sourceAdd) Run() error { return c.run(os.Stdout) }

func (c *sourceAdd) run(w io.Writer) error {
	if c.Name == localSubject {
		return fmt.Errorf("%s is the token of sluice up itself: choose another name", c.Name)
	}
	secret := auth.NewToken()
	entry := auth.Entry{Subject: c.Name, SHA256: auth.Digest(secret), Scopes: []flow.Scope{flow.ScopeRecordsWrite}, Tenants: c.Tenant, Rate: c.Rate}
	for _, text := range c.Exclude {
		rule, err := exclusion(text)
		if err != nil {
			return err
		}
		entry.Exclude = append(entry.Exclude, rule)
	}
	if c.Expires > 0 {
		entry.Expires = time.Now().Add(c.Expires)
	}
	if err := entry.Check(); err != nil {
		return err
	}
	err := c.edit(func(all []auth.Entry) ([]auth.Entry, error) {
		if slices.ContainsFunc(all, isOf(c.Name)) {
			return nil, fmt.Errorf("source %q has a token: sluice source rotate %s creates a new one", c.Name, c.Name)
		}
		return append(all, entry), nil
	})
	if err != nil {
		return err
	}
	c.print(w, c.Name, secret)
	return nil
}

type sourceRotate struct {
	Name string        `arg:"" help:"Name of the engine."`
	Keep time.Duration `default:"1h" help:"How long the former tokens stay valid."`
	tokenFile
	addresses
}

func (c *sourceRotate) Run() error { return c.run(os.Stdout) }

func (c *sourceRotate) run(w io.Writer) error {
	secret := auth.NewToken()
	err := c.edit(func(all []auth.Entry) ([]auth.Entry, error) {
		var last *auth.Entry
		end := time.Now().Add(c.Keep).Truncate(time.Second)
		for i := range all {
			if !isOf(c.Name)(all[i]) {
				continue
			}
			if last = &all[i]; last.Expires.IsZero() || last.Expires.After(end) {
				last.Expires = end
			}
		}
		if last == nil {
			return nil, unknownSource(c.Name, all)
		}
		next := *last
		next.SHA256, next.Expires = auth.Digest(secret), time.Time{}
		return append(all, next), nil
	})
	if err != nil {
		return err
	}
	c.print(w, c.Name, secret)
	fmt.Fprintf(w, "\nFormer tokens of %s are rejected after %v.\n", c.Name, c.Keep)
	return nil
}

type sourceRemove struct {
	Name string `arg:"" help:"Name of the engine."`
	tokenFile
}

func (c *sourceRemove) Run() error { return c.run(os.Stdout) }

func (c *sourceRemove) run(w io.Writer) error {
	revoked := 0
	err := c.edit(func(all []auth.Entry) ([]auth.Entry, error) {
		rest := slices.DeleteFunc(slices.Clone(all), isOf(c.Name))
		if revoked = len(all) - len(rest); revoked == 0 {
			return nil, unknownSource(c.Name, all)
		}
		return rest, nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d tokens of source %s are revoked. Its records stay; sluice forget removes instances.\n", revoked, c.Name)
	return nil
}

type sourceList struct {
	JSON bool `name:"json" help:"Print one JSON object per line."`
	tokenFile
}

func (c *sourceList) Run() error {
	all, err := auth.Read(c.path())
	if err != nil {
		return err
	}
	slices.SortStableFunc(all, func(a, b auth.Entry) int { return strings.Compare(sourceOf(a), sourceOf(b)) })
	if c.JSON {
		out := json.NewEncoder(os.Stdout)
		for _, e := range all {
			line := map[string]any{"source": sourceOf(e), "subject": e.Subject, "scopes": e.Scopes}
			if len(e.Tenants) > 0 {
				line["tenants"] = e.Tenants
			}
			if !e.Expires.IsZero() {
				line["expires"] = e.Expires
			}
			if err := out.Encode(line); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SOURCE\tSUBJECT\tSCOPES\tTENANTS\tEXPIRES")
	for _, e := range all {
		expires := "never"
		if !e.Expires.IsZero() {
			expires = e.Expires.UTC().Format(time.RFC3339)
		}
		tenants := "all"
		if len(e.Tenants) > 0 {
			tenants = strings.Join(e.Tenants, ",")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", sourceOf(e), e.Subject, joined(e.Scopes), tenants, expires)
	}
	return w.Flush()
}

// exclusion parses a rule of --exclude.
func exclusion(text string) (rule flow.Exclusion, err error) {
	members := map[string]*string{"valueType": &rule.ValueType, "intent": &rule.Intent, "bpmnProcessId": &rule.Process, "variable": &rule.Variable}
	for _, part := range strings.Split(text, ",") {
		name, pattern, _ := strings.Cut(part, "=")
		if members[name] == nil || pattern == "" {
			return rule, fmt.Errorf("--exclude %s: %q is not valueType=, intent=, bpmnProcessId=, or variable= followed by a pattern", text, part)
		}
		*members[name] = pattern
	}
	return rule, nil
}

func joined(scopes []flow.Scope) string {
	texts := make([]string, len(scopes))
	for i, s := range scopes {
		texts[i] = string(s)
	}
	return strings.Join(texts, ",")
}

// sourceOf is the source of a token's records.
func sourceOf(e auth.Entry) string {
	if e.Source != "" {
		return e.Source
	}
	return e.Subject
}

// isOf matches the tokens of a source.
func isOf(name string) func(auth.Entry) bool {
	return func(e auth.Entry) bool { return sourceOf(e) == name && e.Subject != localSubject }
}

func unknownSource(name string, all []auth.Entry) error {
	var known []string
	for _, e := range all {
		if isOf(sourceOf(e))(e) && !slices.Contains(known, sourceOf(e)) {
			known = append(known, sourceOf(e))
		}
	}
	if len(known) == 0 {
		return fmt.Errorf("no token of source %q: sluice source add %s creates one", name, name)
	}
	return fmt.Errorf("no token of source %q: sources with tokens are %s", name, strings.Join(known, ", "))
}

// print writes the configuration of the engine.
func (a addresses) print(w io.Writer, name, secret string) {
	fmt.Fprintf(w, `Access token of source %[1]s (shown once):
%[2]s

Camunda 8 broker, environment:
  ZEEBE_BROKER_EXPORTERS_SLUICE_CLASSNAME=io.camunda.zeebe.exporter.ElasticsearchExporter
  ZEEBE_BROKER_EXPORTERS_SLUICE_ARGS_URL=%[4]s
  ZEEBE_BROKER_EXPORTERS_SLUICE_ARGS_AUTHENTICATION_USERNAME=%[5]s
  ZEEBE_BROKER_EXPORTERS_SLUICE_ARGS_AUTHENTICATION_PASSWORD=%[2]s

Kubernetes, the token as a secret (docs/camunda.md shows how a broker reads it):
  kubectl create secret generic sluice-token --from-literal=token=%[2]s

Any client:
  curl %[3]s/flow/flowRecord/batch -H 'Authorization: Bearer %[2]s' -H 'Content-Type: application/json' -d '{"id":"hello-'$(date +%%s)'","valueType":"JOB","timestamp":'$(date +%%s)'000}'
`, name, secret, a.URL, a.Exporters, shellQuote(name))
}

// sourceTokens runs the commands for the console.
type sourceTokens struct {
	file tokenFile
	to   addresses
}

func (t sourceTokens) Add(name string) (string, error) {
	return output((&sourceAdd{Name: name, tokenFile: t.file, addresses: t.to}).run)
}

func (t sourceTokens) Rotate(name string) (string, error) {
	return output((&sourceRotate{Name: name, Keep: time.Hour, tokenFile: t.file, addresses: t.to}).run)
}

func (t sourceTokens) Remove(name string) (string, error) {
	return output((&sourceRemove{Name: name, tokenFile: t.file}).run)
}

func output(run func(io.Writer) error) (string, error) {
	var b strings.Builder
	err := run(&b)
	return b.String(), err
}
