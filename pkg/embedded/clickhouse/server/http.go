package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"sluice/pkg/embedded/clickhouse/library"
)

// web serves HTTP.
type web struct {
	cfg      Config
	engine   *engine
	logins   *logins
	log      *slog.Logger
	sessions *sessions
	ctx      context.Context // ends running statements, independently of requests
}

func newWeb(ctx context.Context, cfg Config, e *engine, l *logins, log *slog.Logger) (*http.Server, *sessions) {
	w := &web{cfg: cfg, engine: e, logins: l, sessions: newSessions(), log: log, ctx: ctx}
	routes := http.NewServeMux()
	routes.HandleFunc("/ping", w.ping)
	routes.HandleFunc("/replicas_status", w.ping)
	routes.HandleFunc("/{$}", w.serve)
	routes.HandleFunc("/", w.unknown)
	server := &http.Server{
		Handler:           w.guard(routes),
		ReadHeaderTimeout: helloTimeout,
		MaxHeaderBytes:    1 << 20,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	return server, w.sessions
}

func (w *web) ping(out http.ResponseWriter, _ *http.Request) {
	out.Header().Set("Content-Type", "text/html; charset=UTF-8")
	io.WriteString(out, "Ok.\n")
}

func (w *web) unknown(out http.ResponseWriter, in *http.Request) {
	out.Header().Set("Content-Type", "text/plain; charset=UTF-8")
	out.WriteHeader(http.StatusNotFound)
	fmt.Fprintf(out, "There is no handle %s\n\nUse / or /ping for health checks.\nSend queries from your program with POST method or GET /?query=...\n", in.URL.Path)
}

// serve runs one statement.
func (w *web) serve(out http.ResponseWriter, in *http.Request) {
	started := time.Now()
	if !in.URL.Query().Has("query") && (in.Method == http.MethodGet || in.Method == http.MethodHead) {
		w.ping(out, in)
		return
	}
	answer := newAnswer(out, in, started)
	err := w.statement(in, answer)
	if err == nil {
		err = answer.finish()
	}
	if err == nil {
		return
	}
	if in.Context().Err() != nil && !answer.sent {
		panic(http.ErrAbortHandler) // the client disconnected
	}
	exception := library.AsException(err)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		exception = library.Exceptionf("QUERY_IS_TOO_LARGE", "Statement is larger than %d bytes", tooLarge.Limit)
	}
	w.log.Debug("clickhouse: statement failed", "query_id", answer.id, "code", exception.Code)
	answer.fail(exception, w.engine.Version)
}

func (w *web) statement(in *http.Request, answer *answer) error {
	switch in.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut:
	default:
		return library.Exceptionf("NOT_IMPLEMENTED", "Method %.20q is not supported", in.Method)
	}
	who, err := w.authenticate(in, answer)
	if err != nil {
		return err
	}
	ask, err := readRequest(in, who)
	if err != nil {
		return err
	}
	answer.id = ask.id
	if answer.id == "" {
		answer.id = rand.Text()
	}
	if answer.format = ask.stmt.format; answer.format == "" {
		answer.format = ask.format
	}
	release, err := w.engine.slot(in.Context(), who.Role, waitForSlot)
	if err != nil {
		return err
	}
	defer release()
	s, giveBack, err := w.sessions.take(in.Context(), w.engine, ask, who)
	if err != nil {
		return err
	}
	defer giveBack()
	defer w.engine.running.enter(ask.id, s.conn.ID)()
	answer.timezone = w.engine.Timezone
	if err := ask.prepare(in.Context(), s); err != nil {
		return err
	}
	drop, err := s.lend(in.Context(), ask.external.tables)
	if err != nil {
		return err
	}
	defer drop()
	if i := ask.stmt.insert; i != nil {
		if err := s.permitInsert(in.Context(), i); err != nil {
			return err
		}
		return w.insert(in, s, ask, answer)
	}
	if err := s.permit(in.Context(), ask.stmt); err != nil {
		return err
	}
	sql := s.named(ask.stmt.text)
	one, many := answer.write, answer.write
	if ask.revision > 0 && strings.EqualFold(answer.format, "Native") {
		out := &reframer{
			revision: ask.revision, describe: func() ([]column, error) { return s.describeApart(in.Context(), ask.stmt.withoutFormat()) },
			begin: func([]column) error { return nil },
			block: func(body []byte) error { return errors.Join(answer.write(noBlockInfo), answer.write(body)) },
		}
		one, many = out.one, out.many
	}
	if streamable[strings.ToLower(answer.format)] {
		answer.done, err = s.conn.Stream(in.Context(), sql, answer.format, one)
		if !library.IsNotStreamable(err) {
			return err
		}
	}
	answer.done, err = s.conn.Run(in.Context(), sql, answer.format, many)
	if err == nil {
		s.ran(ask.stmt)
	}
	return err
}

// insert runs an INSERT with the data that follows its text, and the body.
func (w *web) insert(in *http.Request, s *session, ask *request, answer *answer) error {
	i := ask.stmt.insert
	format := i.format
	if format == "" {
		format = ask.format
	}
	if strings.EqualFold(format, "Values") {
		if err := ask.inspectValues(in.Context(), s); err != nil {
			return err
		}
	}
	insertion, err := s.conn.Insert(i.head, format)
	if err != nil {
		return err
	}
	defer insertion.Cancel() // incomplete data: none of it is stored
	buffer := make([]byte, library.PieceSize)
	for {
		n, err := fill(ask.data, buffer)
		if err != nil && err != io.EOF {
			return fmt.Errorf("read the data of the INSERT: %w", err)
		}
		if !insertion.Append(buffer[:n]) || err == io.EOF {
			break
		}
	}
	// The data is complete; the statement no longer depends on the client.
	answer.done, err = insertion.Finish(w.ctx)
	return err
}

// fill reads until buffer is full or the data ends. Unlike io.ReadFull it distinguishes the
// end of a body from a truncated one.
func fill(data io.Reader, buffer []byte) (n int, err error) {
	for n < len(buffer) && err == nil {
		var more int
		more, err = data.Read(buffer[n:])
		n += more
	}
	return n, err
}

// Any web page in a browser on this machine can send requests here: an <img> whose URL is a
// statement needs no script or click. Browsers keep pages from reading the answer, not from
// running the statement; so requests of other sites are refused, whatever the method.

// guard refuses requests of web pages of other sites.
func (w *web) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		out.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		out.Header().Set("X-Content-Type-Options", "nosniff")
		if reason := w.foreign(in); reason != "" {
			w.log.Warn("clickhouse: refused a request of another site", "security", true, "client", in.RemoteAddr, "reason", reason)
			http.Error(out, "Code: 497. DB::Exception: "+reason+" (ACCESS_DENIED)", http.StatusForbidden)
			return
		}
		next.ServeHTTP(out, in)
	})
}

// foreign is why a request counts as one of another site, or "".
func (w *web) foreign(in *http.Request) string {
	if !w.cfg.isPrivate() && !isOwnName(in.Host) {
		// A page whose name resolves to 127.0.0.1 would count as local. Where every user
		// needs a password, the page lacks it.
		return "Host is not this server: without passwords only localhost and IP addresses are accepted."
	}
	switch site := in.Header.Get("Sec-Fetch-Site"); site {
	case "", "none", "same-origin": // not a browser, or typed in, or a page of this server
	default:
		return "Sec-Fetch-Site says that a web page of another site sent this."
	}
	// Older browsers send Origin, except with plain GETs, which have Referer.
	for _, header := range []string{"Origin", "Referer"} {
		for _, value := range in.Header.Values(header) {
			if from, err := url.Parse(value); err != nil || !strings.EqualFold(from.Host, in.Host) {
				return header + " says that a web page of another site sent this."
			}
		}
	}
	return ""
}

// isOwnName reports whether a Host can only name this machine.
func isOwnName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	return host == "" || strings.EqualFold(host, "localhost") || net.ParseIP(host) != nil
}
