package ops

import (
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
)

// profiles serves /debug/pprof. Profiles show memory and the command line, and
// taking them costs processor time: they have a listener of their own, which
// takes loopback addresses only.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return sameMachine(mux)
}

// listenProfiles takes the port of profiles.
func listenProfiles(address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen for profiles: %w", err)
	}
	if !isLoopback(host) {
		return nil, fmt.Errorf("listen for profiles: %s is not a loopback address, such as 127.0.0.1:6060: profiles show the process's memory", address)
	}
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for profiles: %w", err)
	}
	return ln, nil
}

// sameMachine lets only callers through that sit on this machine and ask this
// machine. A request that a proxy here forwards for another machine does not
// count as local. Neither does one of a web page: its browser is here, but the
// page is not, and it can give this address a name of its own (DNS rebinding),
// which Host shows.
func sameMachine(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil || !isLoopback(caller) || forwarded(r) || !isLoopback(hostOf(r)) || crossSite(r) {
			http.Error(w, "profiles are for callers on the same machine", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func hostOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		return r.Host // without a port
	}
	return host
}

func forwarded(r *http.Request) bool {
	return r.Header.Get("X-Forwarded-For") != "" || r.Header.Get("Forwarded") != ""
}

// crossSite tells whether a browser says that another site asks.
func crossSite(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return r.Header.Get("Origin") != "" || site != "" && site != "none" && site != "same-origin"
}
