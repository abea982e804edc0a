package main

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
)

// surroundings determine the URLs at which browsers reach the console.
type surroundings struct {
	addresses []string // of this machine, without loopback
	user      string   // of the SSH session; empty without one
	sshHost   string   // the address to which the SSH session connected
	container bool
}

func aroundHere() (s surroundings) {
	all, _ := net.InterfaceAddrs() // on error no address is printed
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			s.addresses = append(s.addresses, ip.IP.String())
		}
	}
	if of := strings.Fields(os.Getenv("SSH_CONNECTION")); len(of) == 4 {
		s.user, s.sshHost = os.Getenv("USER"), of[2]
	}
	for _, file := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(file); err == nil {
			s.container = true
		}
	}
	s.container = s.container || os.Getenv("KUBERNETES_SERVICE_HOST") != ""
	return s
}

// consoleLines are the console's addresses: those for other machines when it listens on
// all interfaces, and how to reach a loopback address by SSH or from a container's host.
func consoleLines(link string, here surroundings) string {
	at, err := url.Parse(link)
	if link == "" || err != nil {
		return ""
	}
	var b strings.Builder
	say := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "  %-11[1]s "+format+"\n", append([]any{label}, args...)...)
	}
	host, port := at.Hostname(), at.Port()
	ip := net.ParseIP(host)
	everywhere := ip != nil && ip.IsUnspecified()
	if everywhere {
		at.Host = net.JoinHostPort("127.0.0.1", port)
	}
	say("console", "%s (signs in once, within the hour)", at)
	if everywhere {
		for _, address := range here.addresses {
			at.Host = net.JoinHostPort(address, port)
			say("", "%s (the same from other machines, over plain HTTP)", at)
		}
	}
	target := "HOST"
	switch {
	case here.sshHost != "":
		target = here.sshHost
	case everywhere && len(here.addresses) > 0:
		target = here.addresses[0]
	}
	if here.user != "" {
		target = here.user + "@" + target
	}
	switch loopback := host == "localhost" || ip != nil && ip.IsLoopback(); {
	case here.container && loopback:
		say("", "in a container: add --console 0.0.0.0:%[2]s and publish the port (docker run -p %[2]s:%[2]s, kubectl port-forward)", port)
	case here.container:
		say("", "in a container: publish the port (docker run -p %[2]s:%[2]s, kubectl port-forward) and open the first link", port)
	case here.sshHost != "" || everywhere:
		say("", "by SSH: ssh -L %[2]s:127.0.0.1:%[2]s %[3]s on your machine, then the first link", port, target)
	}
	return b.String()
}
