package endtoend

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/klauspost/compress/zstd"
)

// TestWhoMay runs the api with a token file and a JWT secret, and knocks with
// every kind of token.
func TestWhoMay(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.startNATS()
	secret := bytes.Repeat([]byte("0123456789abcdef"), 2)
	secretFile, tokens := filepath.Join(t.TempDir(), "secret"), filepath.Join(t.TempDir(), "tokens.yaml")
	write := func(file, content string) {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	token := func(flags ...string) (token, line string) {
		code, out := run(t, "sluice", append([]string{"token", "new", "--subject", "engine-a"}, flags...)...)
		lines := strings.Split(out, "\n")
		if code != 0 || len(lines) < 5 {
			t.Fatalf("sluice token new: exit %d\n%s", code, out)
		}
		return lines[1], lines[4] + "\n"
	}
	writer, writerLine := token("--scope", "records:write")
	reader, readerLine := token("--scope", "read")
	slow, slowLine := token("--rate", "1", "--scope", "records:write")
	short, shortLine := token("--expires", "1s", "--scope", "records:write")
	narrow, narrowLine := token("--scope", "records:write", "--tenant", "acme,other", "--table", "orders")
	late, lateLine := token("--scope", "records:write")
	slowLine = strings.Replace(slowLine, "engine-a", "engine-slow", 1) // the rate is the subject's
	write(tokens, writerLine+readerLine+slowLine+shortLine+narrowLine)
	write(secretFile, string(secret))
	api := start(t, "api", "--http", s.http, "--ops", s.ops, "--nats", "nats://"+s.nats, "--tokens", tokens, "--jwt-secret-file", secretFile,
		"--jwt-issuer", "https://issuer", "--jwt-audience", "sluice", "--fingerprint-key", filepath.Join(t.TempDir(), "key"))
	s.waitReady(api, s.ops)

	sign := func(key []byte, change func(*jwt.Claims), scope any) string {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: key}, nil)
		if err != nil {
			t.Fatal(err)
		}
		claims := jwt.Claims{Subject: "jane", Issuer: "https://issuer", Audience: jwt.Audience{"sluice"}, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour))}
		if change != nil {
			change(&claims)
		}
		text, err := jwt.Signed(signer).Claims(claims).Claims(scope).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	good := map[string]any{"scope": "records:write read"}
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." +
		base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"jane","iss":"https://issuer","aud":"sluice","exp":9999999999,"scope":"records:write"}`)) + "."
	time.Sleep(time.Second) // until the short token has expired
	for _, tt := range []struct {
		name, header string
		status       int
		code         string
	}{
		{"a bare token", writer, 200, ""},
		{"a token after Bearer", "Bearer " + writer, 200, ""},
		{"a token after bearer", "bearer " + writer, 200, ""},
		{"no token", "", 401, "token_missing"},
		{"a token for other tenants", narrow, 403, "tenant_forbidden"},
		{"Bearer alone", "Bearer ", 401, "token_missing"},
		{"an unknown token", "Bearer sluice_unknown", 401, "token_invalid"},
		{"a token that is not in the file yet", late, 401, "token_invalid"},
		{"a token that has expired", short, 401, "token_invalid"},
		{"a token without the scope", reader, 403, "scope_missing"},
		{"a JWT", sign(secret, nil, good), 200, ""},
		{"a JWT with scp", "Bearer " + sign(secret, nil, map[string]any{"scp": []string{"records:write"}}), 200, ""},
		{"a JWT without the scope", sign(secret, nil, map[string]any{"scope": "read"}), 403, "scope_missing"},
		{"a JWT that has expired", sign(secret, func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(time.Now().Add(-time.Hour)) }, good), 401, "token_invalid"},
		{"a JWT that is not valid yet", sign(secret, func(c *jwt.Claims) { c.NotBefore = jwt.NewNumericDate(time.Now().Add(time.Hour)) }, good), 401, "token_invalid"},
		{"a JWT of another issuer", sign(secret, func(c *jwt.Claims) { c.Issuer = "https://other" }, good), 401, "token_invalid"},
		{"a JWT for another audience", sign(secret, func(c *jwt.Claims) { c.Audience = jwt.Audience{"other"} }, good), 401, "token_invalid"},
		{"a JWT of another key", sign(bytes.Repeat([]byte("x"), 32), nil, good), 401, "token_invalid"},
		{"a JWT without a signature", none, 401, "token_invalid"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.token = tt.header
			res, body := s.send("POST", "/flow/flowRecord/batch", `{"id":"a"}`)
			if res.StatusCode != tt.status || !strings.Contains(body, tt.code) {
				t.Errorf("answered %s %s, want %d %s", res.Status, body, tt.status, tt.code)
			}
			challenge := res.Header.Get("WWW-Authenticate")
			if tt.status == 401 && !strings.HasPrefix(challenge, "Bearer") || tt.status == 403 && tt.code == "scope_missing" && wantText(body, "records:write") != nil {
				t.Errorf("WWW-Authenticate is %q, the answer %s", challenge, body)
			}
		})
	}
	t.Run("the file is read again when it changes", func(t *testing.T) {
		s.token = late
		write(tokens, lateLine)
		eventually(t, 10*time.Second, func() error { return wantOK(s.send("POST", "/flow/flowRecord/batch", `{"id":"a"}`)) })
		write(tokens, "a broken file: [")
		time.Sleep(1500 * time.Millisecond)
		if err := wantOK(s.send("POST", "/flow/flowRecord/batch", `{"id":"a"}`)); err != nil {
			t.Errorf("with a broken file the last good one should hold: %v", err)
		}
		write(tokens, slowLine)
	})
	t.Run("a subject that asks too often is told when to come back", func(t *testing.T) {
		s.token = slow
		eventually(t, 10*time.Second, func() error { return wantOK(s.send("POST", "/flow/flowRecord/batch", `{"id":"a"}`)) })
		res, body := s.send("POST", "/flow/flowRecord/batch", `{"id":"a"}`)
		for tries := 0; res.StatusCode == http.StatusOK && tries < 20; tries++ { // a second has passed, on a busy machine
			res, body = s.send("POST", "/flow/flowRecord/batch", `{"id":"a"}`)
		}
		if res.StatusCode != http.StatusTooManyRequests {
			t.Fatalf("answered %s %s, want 429", res.Status, body)
		}
		if n, err := strconv.Atoi(res.Header.Get("Retry-After")); err != nil || n < 1 || res.Header.Get("RateLimit") == "" || res.Header.Get("RateLimit-Policy") == "" {
			t.Errorf("headers are %v, want Retry-After and RateLimit", res.Header)
		}
	})
}

// requestsInEveryForm: methods, media types, compression and dedup.
func requestsInEveryForm(t *testing.T, s *stack) {
	const batch = "/flow/flowRecord/batch"
	packed := zstdOf(t, []byte(`{"id":"z"}`))
	bomb := gzipOf(t, bytes.Repeat([]byte(" "), 15<<20))
	for _, tt := range []struct {
		name, method, path string
		header             http.Header
		body               []byte
		status             int
		want               string
	}{
		{"gzip", "POST", batch, http.Header{"Content-Encoding": {"gzip"}}, gzipOf(t, []byte(`{"id":"g"}`)), 200, `{"status":"OK"}`},
		{"zstd", "POST", batch, http.Header{"Content-Encoding": {"zstd"}}, packed, 200, `{"status":"OK"}`},
		{"NDJSON", "POST", batch, http.Header{"Content-Type": {"application/x-ndjson"}}, []byte("{\"id\":\"n1\"}\n{\"id\":\"n2\"}\n"), 200, `{"status":"OK"}`},
		{"an empty NDJSON", "POST", batch, http.Header{"Content-Type": {"application/x-ndjson"}}, []byte("\n"), 200, `{"status":"OK"}`},
		{"a compression that is cut off", "POST", batch, http.Header{"Content-Encoding": {"zstd"}}, packed[:len(packed)-4], 400, "bad_compression"},
		{"a compression bomb", "POST", batch, http.Header{"Content-Encoding": {"gzip"}}, bomb, 413, "compression_ratio"},
		{"an unknown compression", "POST", batch, http.Header{"Content-Encoding": {"br"}}, []byte("x"), 415, "unsupported_encoding"},
		{"an unknown media type", "POST", batch, http.Header{"Content-Type": {"text/csv"}}, []byte("x"), 415, "unsupported_media_type"},
		{"an answer that is not wanted", "POST", batch, http.Header{"Accept": {"text/html"}}, []byte(`{"id":"h"}`), 406, "not_acceptable"},
		{"a method that is not there", "PUT", batch, nil, nil, 405, "method_not_allowed"},
		{"a path that is not there", "POST", "/flow/flowRecord", nil, nil, 404, "no_such_route"},
		{"a key", "POST", batch, http.Header{"Idempotency-Key": {"k1"}}, []byte(`[{"key":1},{"key":2}]`), 200, `{"status":"OK"}`},
		{"the key again", "POST", batch, http.Header{"Idempotency-Key": {"k1"}}, []byte(`[{"key":1},{"key":2}]`), 200, `{"status":"OK"}`},
		{"the key with another body", "POST", batch, http.Header{"Idempotency-Key": {"k1"}}, []byte(`[{"key":3}]`), 422, "idempotency_key_reused"},
		{"a key that is too long", "POST", batch, http.Header{"Idempotency-Key": {strings.Repeat("k", 256)}}, []byte(`{}`), 400, "bad_idempotency_key"},
		{"the document of the routes", "GET", "/openapi.json", nil, nil, 200, `"openapi":"3.1`},
		{"the page of the routes", "GET", "/docs", nil, nil, 200, "<html"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res, body := s.sendWith(tt.header, tt.method, tt.path, tt.body)
			if res.StatusCode != tt.status || !strings.Contains(strings.ReplaceAll(body, ": ", ":"), tt.want) {
				t.Errorf("answered %s %.300s, want %d with %s", res.Status, body, tt.status, tt.want)
			}
			if replayed := res.Header.Get("Idempotent-Replayed") == "true"; replayed != (tt.name == "the key again") {
				t.Errorf("replayed is %v", replayed)
			}
			if tt.status == 405 && res.Header.Get("Allow") != "POST" {
				t.Errorf("Allow is %q", res.Header.Get("Allow"))
			}
		})
	}
	t.Run("a large request that is sent again is stored once", func(t *testing.T) {
		body := incompressible(30_000) // more messages than one
		for range 3 {
			if err := wantOK(s.sendWith(http.Header{"Idempotency-Key": {"large"}}, "POST", batch, body)); err != nil {
				t.Fatal(err)
			}
		}
		s.eventuallyQuery(20*time.Second, "SELECT count(), uniqExact(id), uniqExact(stream_seq) > 3 FROM flow.records WHERE intent = 'LARGE'", "30000\t30000\t1")
	})
	s.eventuallyQuery(10*time.Second, "SELECT arraySort(groupArray(id)) FROM flow.records WHERE intent = '' AND NOT startsWith(id, 'h-')", "['g','n1','n2','z']")
	s.eventuallyQuery(10*time.Second, "SELECT count(), sum(key) FROM flow.records WHERE startsWith(id, 'h-')", "2\t3")
}

// incompressible makes an array of n records that hardly compress.
func incompressible(n int) []byte {
	var b bytes.Buffer
	x := uint64(88172645463325252)
	for i := range n {
		fmt.Fprintf(&b, `,{"id":"L-%d","intent":"LARGE","value":{"variables":"`, i)
		for range 16 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			b.WriteString(strconv.FormatUint(x, 36))
		}
		b.WriteString(`"}}`)
	}
	return append(append([]byte("["), b.Bytes()[1:]...), ']')
}

func gzipOf(t *testing.T, body []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(body); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zstdOf(t *testing.T, body []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(body, nil)
}
