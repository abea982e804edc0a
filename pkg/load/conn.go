package load

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// answer is the response to one attempt.
type answer struct {
	status     int
	body       []byte        // truncated
	retryAfter time.Duration // 0: none
}

// ok reports whether the records are durable; no other response is an acknowledgement.
func (a answer) ok() bool {
	return a.status == http.StatusOK && strings.TrimSpace(string(a.body)) == `{"status":"OK"}`
}

// conn posts over one persistent connection, one request at a time. net/http needs two
// goroutines and four times the CPU per request, which a benchmark on the same machine
// would attribute to the api.
type conn struct {
	url     *url.URL
	head    string // the constant part of every request's head
	timeout time.Duration
	tls     *tls.Config

	open   net.Conn // nil: none
	in     *bufio.Reader
	out    []byte
	detach func() bool // ends the cancellation of open by the context
}

func newConn(cfg Config, u *url.URL) *conn {
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: sluice-load\r\nContent-Type: application/json\r\n", u.RequestURI(), u.Host)
	if cfg.Gzip {
		head += "Content-Encoding: gzip\r\n"
	}
	return &conn{url: u, head: head, timeout: cfg.Timeout, tls: cfg.TLS}
}

// post sends a body and waits for the answer. After an error the outcome is unknown and
// the connection is closed.
func (c *conn) post(ctx context.Context, body []byte, authorization, key string) (answer, error) {
	if err := c.dial(ctx); err != nil {
		return answer{}, err
	}
	a, keep, err := c.exchange(ctx, body, authorization, key)
	if err != nil || !keep {
		c.close()
	}
	return a, err
}

func (c *conn) exchange(ctx context.Context, body []byte, authorization, key string) (a answer, keep bool, err error) {
	if err := c.open.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return answer{}, false, err
	}
	// The end of ctx sets a deadline in the past, which the line above may have
	// overwritten.
	if err := ctx.Err(); err != nil {
		return answer{}, false, err
	}
	c.out = append(c.out[:0], c.head...)
	if authorization != "" {
		c.out = append(append(append(c.out, "Authorization: "...), authorization...), "\r\n"...)
	}
	if key != "" {
		c.out = append(append(append(c.out, "Idempotency-Key: "...), key...), "\r\n"...)
	}
	c.out = append(strconv.AppendInt(append(c.out, "Content-Length: "...), int64(len(body)), 10), "\r\n\r\n"...)
	buffers := net.Buffers{c.out, body}
	_, writeErr := buffers.WriteTo(c.open)
	// A server may reject a body before reading all of it, so a response may exist
	// although the write failed.
	a, keep, err = c.read()
	if err != nil && writeErr != nil {
		err = writeErr
	}
	return a, keep && writeErr == nil, err
}

// maxAnswer bounds the bytes read of a response.
const maxAnswer = 64 << 10

func (c *conn) read() (answer, bool, error) {
	response, err := http.ReadResponse(c.in, nil)
	for err == nil && response.StatusCode < 200 {
		response, err = http.ReadResponse(c.in, nil)
	}
	if err != nil {
		return answer{}, false, err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return answer{}, false, err
	}
	a := answer{status: response.StatusCode, body: body, retryAfter: retryAfter(response.Header.Get("Retry-After"), time.Now())}
	return a, !response.Close && len(body) < maxAnswer, response.Body.Close()
}

func (c *conn) dial(ctx context.Context) error {
	if c.open != nil {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	host, port := c.url.Hostname(), c.url.Port()
	if port == "" {
		port = c.url.Scheme // also the name of its port
	}
	dialer := &net.Dialer{}
	open, err := dialer.DialContext(limited, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return err
	}
	if c.url.Scheme == "https" {
		cfg := &tls.Config{}
		if c.tls != nil {
			cfg = c.tls.Clone()
		}
		if cfg.ServerName == "" {
			cfg.ServerName = host
		}
		secure := tls.Client(open, cfg)
		if err := secure.HandshakeContext(limited); err != nil {
			open.Close()
			return fmt.Errorf("TLS handshake: %w", err)
		}
		open = secure
	}
	c.open, c.in = open, bufio.NewReader(open)
	c.detach = context.AfterFunc(ctx, func() { open.SetDeadline(time.Unix(1, 0)) }) // fails only if closed
	return nil
}

func (c *conn) close() {
	if c.open != nil {
		c.detach()
		c.open.Close() // no write is pending
		c.open = nil
	}
}

// retryAfter parses seconds or a date; 0 if neither, or in the past.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
