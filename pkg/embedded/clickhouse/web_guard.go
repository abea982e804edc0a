package clickhouse

import (
	"net"
	"net/http"
	"net/url"
	"strings"
)

// A browser on this machine can send requests here for any web page it shows:
// an <img> whose address is a statement needs neither script nor click. Reading
// the answer is what browsers forbid pages, running the statement is not; so
// what comes from another site is refused, whatever its method.

// guard keeps out requests that web pages of other sites have made.
func (w *web) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		out.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		out.Header().Set("X-Content-Type-Options", "nosniff")
		if reason := w.foreign(in); reason != "" {
			w.log.Info("clickhouse: request of another site refused", "client", in.RemoteAddr, "reason", reason)
			http.Error(out, "Code: 497. DB::Exception: "+reason+" (ACCESS_DENIED)", http.StatusForbidden)
			return
		}
		next.ServeHTTP(out, in)
	})
}

// foreign says why a request comes from another site, or "".
func (w *web) foreign(in *http.Request) string {
	if !w.cfg.isPrivate() && !isOwnName(in.Host) {
		// A page whose name resolves to 127.0.0.1 would be as good as local. Where
		// everybody needs a password, such a page still lacks it.
		return "Host is not this server: without a password it answers to localhost and to addresses only."
	}
	switch site := in.Header.Get("Sec-Fetch-Site"); site {
	case "", "none", "same-origin": // no browser, or a person, or a page of this server
	default:
		return "Sec-Fetch-Site says that a web page of another site sent this."
	}
	// What older browsers send: Origin with all but plain GETs, Referer with those.
	for _, header := range []string{"Origin", "Referer"} {
		for _, value := range in.Header.Values(header) {
			if from, err := url.Parse(value); err != nil || !strings.EqualFold(from.Host, in.Host) {
				return header + " says that a web page of another site sent this."
			}
		}
	}
	return ""
}

// isOwnName tells whether no other machine can have the name of a Host.
func isOwnName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	return host == "" || strings.EqualFold(host, "localhost") || net.ParseIP(host) != nil
}
