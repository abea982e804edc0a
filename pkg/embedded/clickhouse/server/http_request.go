package server

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"sluice/pkg/embedded/clickhouse/library"
)

// request is a statement received over HTTP.
type request struct {
	id       string
	database string
	format   string // of data and result, unless the statement has a FORMAT
	stmt     statement
	data     io.Reader // of an INSERT
	settings []setting
	params   []setting // values for {name:Type}
	external externals // external tables, as files of a form

	sessionTime  time.Duration // lifetime of the session after the request
	sessionCheck bool          // the session must exist

	readonly bool   // of a GET
	session  string // id of a persistent session, or ""
	revision int    // of the native protocol, for results in FORMAT Native; 0: none
}

const defaultFormat = "TabSeparated"

// notSettings are the query parameters other than settings.
var notSettings = map[string]bool{
	"query": true, "database": true, "session_id": true, "default_format": true, "query_id": true,
	"user": true, "password": true, "compress": true, "decompress": true,
	"wait_end_of_query": true, "buffer_size": true, "stacktrace": true, "quota_key": true,
	"session_timeout": true, "session_check": true, "client_protocol_version": true,
}

// peekSize bounds the part of a body that is searched for the start of an INSERT's data.
const peekSize = 1 << 20

func readRequest(in *http.Request, who user) (*request, error) {
	values := in.URL.Query()
	r := &request{
		id:       values.Get("query_id"),
		database: cmp.Or(values.Get("database"), in.Header.Get("X-ClickHouse-Database")),
		format:   cmp.Or(values.Get("default_format"), in.Header.Get("X-ClickHouse-Format"), defaultFormat),
		readonly: in.Method == http.MethodGet || in.Method == http.MethodHead,
	}
	if text := values.Get("client_protocol_version"); text != "" {
		var err error
		if r.revision, err = strconv.Atoi(text); err != nil || r.revision < 0 {
			return nil, library.Exceptionf("BAD_ARGUMENTS", "client_protocol_version %.32q is not a number", text)
		}
	}
	if err := r.readSession(values); err != nil {
		return nil, err
	}
	query := values.Get("query")
	for name, all := range values {
		r.add(name, all[len(all)-1])
	}
	if strings.HasPrefix(in.Header.Get("Content-Type"), "multipart/form-data") {
		more, err := r.readForm(in, who)
		if err != nil {
			return nil, err
		}
		return r, r.read(query+more, bufio.NewReaderSize(http.NoBody, peekSize))
	}
	body, err := decoded(in, values)
	if err != nil {
		return nil, err
	}
	return r, r.read(query, body)
}

// add adds a setting, or the value of a {name:Type}.
func (r *request) add(name, value string) {
	if notSettings[name] {
		return
	}
	if parameter, ok := strings.CutPrefix(name, "param_"); ok {
		r.params = append(r.params, setting{name: parameter, value: value})
		return
	}
	r.settings = append(r.settings, setting{name: name, value: value, important: true})
}

// maxField bounds a field of a form.
const maxField = 1 << 20

// readForm reads a form: parameters, settings, the rest of the statement, and files, each an
// external table described by NAME_structure or NAME_types, and NAME_format.
func (r *request) readForm(in *http.Request, who user) (query string, err error) {
	form, err := in.MultipartReader()
	if err != nil {
		return "", library.Exceptionf("BAD_ARGUMENTS", "Form cannot be read: %v", err)
	}
	for fields := 0; ; fields++ {
		part, err := form.NextPart()
		if err == io.EOF {
			return query, nil
		}
		if err != nil {
			return "", fmt.Errorf("read the form: %w", err)
		}
		limit := maxField
		if part.FileName() != "" {
			if !who.mayLend() {
				return "", errExternalTables
			}
			limit = maxExternal - r.external.bytes
		}
		if part.FormName() == "query" {
			limit = maxStatement
		}
		value, err := io.ReadAll(io.LimitReader(part, int64(limit)+1))
		if err != nil {
			return "", fmt.Errorf("read the form: %w", err)
		}
		if len(value) > limit || fields >= maxSettings {
			return "", library.Exceptionf("QUERY_IS_TOO_LARGE", "Form is too large at its field %.64q", part.FormName())
		}
		switch name := part.FormName(); {
		case name == "query":
			query += string(value)
		case part.FileName() != "":
			r.external.bytes += len(value)
			r.external.tables = append(r.external.tables, externalTable{name: name, data: value})
		default:
			r.add(name, string(value))
		}
	}
}

// read finds the statement: in the query parameter, in the body, or split between both.
func (r *request) read(query string, body *bufio.Reader) error {
	if query != "" {
		r.stmt = parseStatement(query)
		if i := r.stmt.insert; i != nil {
			r.data = io.MultiReader(strings.NewReader(i.data), body)
			return nil
		}
		query += "\n"
	}
	head, err := body.Peek(peekSize)
	if err != nil && err != io.EOF {
		return err
	}
	if r.stmt = parseStatement(query + string(head)); r.stmt.insert != nil {
		text := len(query) + len(head)
		if _, err := body.Discard(len(head)); err != nil {
			return err
		}
		r.data = io.MultiReader(strings.NewReader((query + string(head))[text-len(r.stmt.insert.data):]), body)
		return nil
	}
	rest, err := io.ReadAll(io.LimitReader(body, maxStatement+1))
	if err != nil {
		return err
	}
	if len(rest) > maxStatement {
		return library.Exceptionf("QUERY_IS_TOO_LARGE", "Statement is larger than %d bytes", maxStatement)
	}
	if len(rest) > len(head) || query != "" {
		r.stmt = parseStatement(query + string(rest))
	}
	return r.stmt.check()
}

// prepare applies the request's settings to the session.
func (r *request) prepare(ctx context.Context, s *session) error {
	settings := r.external.described(r.settings)
	if r.readonly && r.session == "" { // no SET reverts it, so permit protects persistent sessions
		settings = append(settings, setting{name: "readonly", value: "2"})
	}
	for _, p := range r.params {
		if err := s.parameter(ctx, p.name, p.value); err != nil {
			return err
		}
	}
	return s.apply(ctx, settings)
}

// maxExpressions bounds the inspected data in FORMAT Values.
const maxExpressions = 1 << 20

// inspectValues inspects data in FORMAT Values, whose expressions must not access files or
// addresses either. Data beyond maxExpressions must be plain values.
func (r *request) inspectValues(ctx context.Context, s *session) error {
	if s.engine.allowFiles {
		return nil
	}
	head, err := io.ReadAll(io.LimitReader(r.data, maxExpressions+1))
	if err != nil {
		return fmt.Errorf("read the data of the INSERT: %w", err)
	}
	r.data = io.MultiReader(bytes.NewReader(head), r.data)
	if len(head) <= maxExpressions {
		return s.inside(string(head))
	}
	return s.do(ctx, "SET input_format_values_interpret_expressions = 0")
}

func isName(name string) bool {
	l := &lexer{text: name}
	t := l.next()
	return t.kind == tokenWord && t.start == 0 && t.end == len(name)
}

// decoded is the decompressed body.
func decoded(in *http.Request, values url.Values) (*bufio.Reader, error) {
	var body io.Reader = in.Body
	switch encoding := strings.ToLower(in.Header.Get("Content-Encoding")); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		unzip, err := gzip.NewReader(body)
		if err != nil {
			return nil, library.Exceptionf("INCORRECT_DATA", "Body is not gzip: %v", err)
		}
		body = unzip
	case "zstd":
		unzip, err := zstd.NewReader(body, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		context.AfterFunc(in.Context(), unzip.Close) // the context ends with the request
		body = unzip
	case "lz4":
		body = lz4.NewReader(body)
	default:
		return nil, library.Exceptionf("NOT_IMPLEMENTED", "Content-Encoding %.20q is not supported, only gzip, zstd and lz4", encoding)
	}
	buffered := bufio.NewReaderSize(body, peekSize)
	if values.Get("decompress") == "1" {
		buffered = bufio.NewReaderSize(&frames{src: buffered}, peekSize)
	}
	return buffered, nil
}

// authenticate finds the user, in the three forms of ClickHouse.
func (w *web) authenticate(in *http.Request, answer *answer) (user, error) {
	name, password, given := "", "", false
	values := in.URL.Query()
	if basicUser, basicPassword, ok := in.BasicAuth(); ok {
		name, password, given = basicUser, basicPassword, true
		if password == "None" && (name == "None" || name == "default") { // clickhouse-sqlalchemy, of a URL without them
			name, password = "", ""
		}
	}
	if user, key := in.Header.Get("X-ClickHouse-User"), in.Header.Get("X-ClickHouse-Key"); user != "" || key != "" {
		name, password, given = user, key, true
	}
	if values.Has("user") || values.Has("password") {
		name, password, given = values.Get("user"), values.Get("password"), true
	}
	if !given {
		who, err := w.logins.accounts.logIn("", "")
		if err != nil {
			answer.header().Set("WWW-Authenticate", `Basic realm="ClickHouse server HTTP API"`)
			return user{}, library.Exceptionf("REQUIRED_PASSWORD", "User and password are required")
		}
		return who, nil
	}
	from, _ := in.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if address, err := net.ResolveTCPAddr("tcp", in.RemoteAddr); err == nil {
		from = address
	}
	return w.logins.logIn(in.Context(), from, "http", name, password)
}
