package ops

import (
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
)

// profiles serves /debug/pprof. Profiles disclose memory and the command line and cost
// processor time, so they have a listener of their own, on loopback only.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return sameMachine(mux)
}

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

// sameMachine admits only requests from this machine to this machine. A request that a
// local proxy forwards is not local. Neither is one of a web page: the browser is local,
// but the page may use its own name for this address (DNS rebinding), visible in Host.
func sameMachine(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil || !isLoopback(caller) || forwarded(r) || !isLoopback(hostOf(r)) || crossSite(r) {
			http.Error(w, "profiles are served to local requests only", http.StatusForbidden)
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

// crossSite reports whether a browser sends the request for another site.
func crossSite(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return r.Header.Get("Origin") != "" || site != "" && site != "none" && site != "same-origin"
}
