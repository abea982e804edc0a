// Package statement runs one statement over ClickHouse's HTTP and streams the answer, for
// export and ask.
package statement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Server is the URL of ClickHouse's HTTP interface, http://user:password@host:8123/database.
// It may have a password: no error contains it.
type Server string

// Database is that of the URL; default flow.
func (s Server) Database() string {
	address, err := url.Parse(string(s))
	if err != nil {
		return "flow"
	}
	return cmp.Or(strings.Trim(address.Path, "/"), "flow")
}

// Copy runs a statement, with the HTTP parameters in query, and streams its answer. Older
// servers report an error midway only in the answer's text: the caller must check that
// the answer is complete.
func (s Server) Copy(ctx context.Context, sql string, query url.Values, to io.Writer) error {
	address, err := url.Parse(string(s))
	if err != nil || address.Host == "" {
		return errors.New("--clickhouse-http is not an address: use host:8123 or https://user@host:8443/flow")
	}
	query.Set("database", s.Database())
	login := address.User
	address.Path, address.RawQuery, address.User = "/", query.Encode(), nil
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address.String(), strings.NewReader(sql))
	if err != nil {
		return err
	}
	if password, _ := login.Password(); login != nil {
		req.SetBasicAuth(login.Username(), password)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("query ClickHouse at %s: %w", address.Host, errors.Unwrap(err)) // err is a *url.Error with the whole query
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 4096)) // the status alone is an error
		return fmt.Errorf("query ClickHouse at %s: %s: %s", address.Host, res.Status, strings.TrimSpace(string(text)))
	}
	_, err = io.Copy(to, res.Body)
	return err
}

// Cell prefixes a text that a spreadsheet would run as a formula with a quote, which
// spreadsheets hide.
func Cell(text string) string {
	if text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0])) {
		return "'" + text
	}
	return text
}
