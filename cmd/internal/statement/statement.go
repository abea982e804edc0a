// Package statement runs one statement over ClickHouse's HTTP and copies the answer as
// it comes: export and ask read with it.
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

// Database is the one that the URL names, or flow.
func (s Server) Database() string {
	address, err := url.Parse(string(s))
	if err != nil {
		return "flow"
	}
	return cmp.Or(strings.Trim(address.Path, "/"), "flow")
}

// Copy runs a statement, with settings and parameters of HTTP in query, and copies its
// answer. An error in the middle of the answer is in its text alone on older servers: the
// caller checks that the answer is whole.
func (s Server) Copy(ctx context.Context, sql string, query url.Values, to io.Writer) error {
	address, err := url.Parse(string(s))
	if err != nil || address.Host == "" {
		return errors.New("--clickhouse-http: not an address such as host:8123 or https://user@host:8443/flow")
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
		return fmt.Errorf("read from ClickHouse at %s: %w", address.Host, errors.Unwrap(err)) // a *url.Error, which has the whole query
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 4096)) // the status is the error
		return fmt.Errorf("read from ClickHouse: %s: %s", res.Status, strings.TrimSpace(string(text)))
	}
	_, err = io.Copy(to, res.Body)
	return err
}

// Cell is a text as CSV that people open in a spreadsheet has it: a text that would be a
// formula there gets a quote in front, which spreadsheets do not show.
func Cell(text string) string {
	if text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0])) {
		return "'" + text
	}
	return text
}
