package dial

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Config configures connections to NATS.
type Config struct {
	URL  string `name:"nats" default:"nats://127.0.0.1:4222" help:"NATS servers, comma-separated URLs."` // they may contain user and password
	User string `name:"nats-user" help:"NATS user, with --nats-password-file, instead of both in --nats."`

	// PasswordFile holds the password of User, one line, instead of Password. Like the
	// other files it is read for every connection, so that a rotation needs no restart.
	// With it, a server that refuses the user is retried without limit: either side may not
	// have the new password yet.
	PasswordFile string `name:"nats-password-file" type:"existingfile" help:"File with the NATS user's password, one line; reread for every connection, like the files below."`

	Credentials string `name:"nats-creds" type:"existingfile" help:"File of the NATS user's credentials."`
	CA          string `name:"nats-ca" type:"existingfile" help:"File of the CA certificates (PEM) of the servers; the system's when empty."`
	Cert        string `name:"nats-cert" type:"existingfile" help:"File of this client's PEM certificate."`
	Key         string `name:"nats-key" type:"existingfile" help:"File of its private key."`

	Name     string `kong:"-"` // client name of the connection, such as api
	Password string `kong:"-"` // of User, instead of PasswordFile

	// Silence bounds the time without any message from the server, which is pinged three
	// times meanwhile; then the client reconnects, perhaps to another server. Default
	// 15 s. A link slower than that for one message looks silent too.
	Silence time.Duration `kong:"-"`
}

// Connect returns a connection that reconnects without limit, even if no server answers yet. It
// fails only for invalid options.
func Connect(c Config, log *slog.Logger, reg prometheus.Registerer) (*nats.Conn, error) {
	nc, err := nats.Connect(c.URL, append(c.Options(log, NewMetrics(reg)), nats.RetryOnFailedConnect(true))...)
	if bad := new(url.Error); errors.As(err, &bad) { // it shows the URL and parts of a password
		return nil, fmt.Errorf("connect to NATS: %s is not a URL such as nats://user:password@host:4222: percent-encode special characters of user and password", Redact(c.URL))
	}
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return nc, nil
}

// Redact is a list of URLs without users and passwords. A malformed URL is shortened further.
func Redact(urls string) string {
	if !strings.Contains(urls, "@") {
		return urls
	}
	shown := strings.Split(urls, ",") // a password may have a comma, too
	for i, u := range shown {
		scheme, rest, ok := strings.Cut(u, "://")
		if !ok || strings.Trim(scheme, "abcdefghijklmnopqrstuvwxyz") != "" {
			scheme, rest = "nats", u
		}
		host := ""
		if at := strings.LastIndex(rest, "@"); at >= 0 {
			host = rest[at+1:]
		}
		shown[i] = scheme + "://***@" + host
	}
	return strings.Join(shown, ",")
}

// Options are the options of Connect, also for an in-process server.
func (c Config) Options(log *slog.Logger, m *Metrics) []nats.Option {
	silence := cmp.Or(c.Silence, 15*time.Second)
	said := &reasons{log: log}
	opts := []nats.Option{
		nats.Name("sluice " + c.Name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(200 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 500*time.Millisecond),
		nats.ReconnectBufSize(-1), // no buffering while disconnected: it would look sent and be lost
		nats.PingInterval(silence / 3),
		nats.MaxPingsOutstanding(3), // conn detects silence earlier
		nats.SetCustomDialer(newDialer(silence, !strings.HasPrefix(c.URL, "ws"))),
		nats.SkipHostLookup(), // the dialer resolves, without the client's lock
		nats.Timeout(dialLimit),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			m.asyncErrors.Inc()
			if errors.Is(err, nats.ErrAuthorization) {
				said.say(err)
				return
			}
			attrs := []any{"error", err}
			if sub != nil {
				attrs = append(attrs, "subject", sub.Subject)
			}
			log.Error("NATS reported an error", attrs...)
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil: closed by this process
				log.Warn("NATS connection lost", "error", err)
			}
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { said.say(err) }),
		nats.ConnectHandler(func(*nats.Conn) { said.forget() }),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			said.forget()
			m.reconnects.Inc()
			log.Info("NATS reconnected", "server", nc.ConnectedUrlRedacted())
		}),
	}
	if c.Name != "" {
		// Inboxes per role, so that permissions can keep other roles from reading replies.
		opts = append(opts, nats.CustomInboxPrefix("_INBOX_"+c.Name))
	}
	switch {
	case c.PasswordFile != "":
		opts = append(opts, nats.UserInfoHandler(c.userInfo(log)), nats.IgnoreAuthErrorAbort())
	case c.User != "":
		opts = append(opts, nats.UserInfo(c.User, c.Password))
	}
	if c.Credentials != "" {
		opts = append(opts, nats.UserCredentials(c.Credentials))
	}
	if c.CA != "" {
		opts = append(opts, nats.RootCAs(c.CA))
	}
	if c.Cert != "" || c.Key != "" {
		opts = append(opts, nats.ClientCert(c.Cert, c.Key))
	}
	return opts
}

// userInfo reads the password for each connection. While its file cannot be read, as
// during a replacement, the previous one is used.
func (c Config) userInfo(log *slog.Logger) nats.UserInfoCB {
	last := ""
	return func() (user, password string) { // serialized by the client's lock
		line, err := Line(c.PasswordFile)
		if err != nil {
			log.Error("the password of the NATS user cannot be read", "user", c.User, "error", err)
			return c.User, last
		}
		last = line
		return c.User, line
	}
}

func Line(file string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	line := strings.TrimSpace(string(content))
	if line == "" || strings.ContainsAny(line, "\r\n") {
		return "", fmt.Errorf("%s must hold one line", file)
	}
	return line, nil
}

// reasons logs why connecting fails, each reason once until it succeeds: the client tries
// several times a second.
type reasons struct {
	log  *slog.Logger
	mu   sync.Mutex
	said map[string]bool
}

func (r *reasons) say(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reason := err.Error()
	if r.said[reason] || len(r.said) == maxReasons {
		return
	}
	if r.said == nil {
		r.said = map[string]bool{}
	}
	r.said[reason] = true
	r.log.Warn("NATS cannot be reached", "error", err)
}

// maxReasons bounds the reasons kept: errors name local ports.
const maxReasons = 16

func (r *reasons) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.said)
}

// Metrics count for all connections of a process.
type Metrics struct{ reconnects, asyncErrors prometheus.Counter }

func NewMetrics(reg prometheus.Registerer) *Metrics {
	auto := promauto.With(prometheus.WrapRegistererWithPrefix("sluice_stream_", reg))
	return &Metrics{
		reconnects:  auto.NewCounter(prometheus.CounterOpts{Name: "reconnects_total", Help: "Reconnections to NATS."}),
		asyncErrors: auto.NewCounter(prometheus.CounterOpts{Name: "connection_errors_total", Help: "Asynchronous errors of NATS connections, such as a permissions violation or a slow consumer."}),
	}
}
