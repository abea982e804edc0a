package main

import (
	"strings"
	"testing"
)

// TestTheLinkWorksFromWhereThePersonIs: on all interfaces, by SSH, and in a container.
func TestTheLinkWorksFromWhereThePersonIs(t *testing.T) {
	const code = "/sign-in#once=abc"
	for _, c := range []struct {
		name, link string
		here       surroundings
		want       []string
		not        string
	}{
		{"at the machine", "http://127.0.0.1:8083" + code, surroundings{addresses: []string{"10.0.0.7"}}, []string{"http://127.0.0.1:8083" + code}, "ssh"},
		{"all addresses", "http://[::]:8083" + code, surroundings{addresses: []string{"10.0.0.7", "fd00::7"}},
			[]string{"http://127.0.0.1:8083" + code, "http://10.0.0.7:8083" + code, "http://[fd00::7]:8083" + code, "ssh -L 8083:127.0.0.1:8083 10.0.0.7"}, "[::]"},
		{"by SSH", "http://127.0.0.1:8083" + code, surroundings{user: "ana", sshHost: "192.0.2.1"}, []string{"ssh -L 8083:127.0.0.1:8083 ana@192.0.2.1"}, "container"},
		{"in a container", "http://127.0.0.1:8083" + code, surroundings{container: true}, []string{"--console 0.0.0.0:8083", "-p 8083:8083"}, "ssh"},
		{"off", "", surroundings{sshHost: "192.0.2.1"}, nil, "ssh"},
	} {
		got := consoleLines(c.link, c.here)
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: no %q in\n%s", c.name, want, got)
			}
		}
		if strings.Contains(got, c.not) {
			t.Errorf("%s: %q in\n%s", c.name, c.not, got)
		}
	}
}
