package deploy_test

import (
	"bytes"
	"flag"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/fatal"
)

var update = flag.Bool("update", false, "write deploy/kubernetes/base/rules.yaml instead of comparing it")

// overlays are built into files of their own, which these tests read: by what
// they are built is held against them in cmd/internal/foreign/kubernetes.
var overlays = []string{"small", "r3"}

func TestPodsOfKubernetesAreConfined(t *testing.T) {
	no := false
	for _, overlay := range overlays {
		m := built(t, overlay)
		if got, want := slices.Sorted(maps.Keys(m.pods)), []string{"api", "console", "ingester", "streams"}; !slices.Equal(got, want) {
			t.Fatalf("%s runs %q, want %q", overlay, got, want)
		}
		for name, p := range m.pods {
			s := p.spec.Security
			if !s.NonRoot || s.User != 65532 || s.Group != 65532 || s.FSGroup != 65532 || s.Seccomp.Type != "RuntimeDefault" {
				t.Errorf("%s: the pods of %s run as %+v", overlay, name, s)
			}
			if diff := cmp.Diff([]*bool{&no, &no}, []*bool{p.spec.Automount, p.spec.ServiceLinks}); diff != "" {
				t.Errorf("%s: pods of %s have a token of Kubernetes, or variables of Services that begin with SLUICE_:\n%s", overlay, name, diff)
			}
			for _, c := range p.spec.Containers {
				if !cmp.Equal(&no, c.Security.Escalation) || !c.Security.ReadOnly || !slices.Equal(c.Security.Capabilities.Drop, []string{"ALL"}) || len(c.Security.Capabilities.Add) > 0 {
					t.Errorf("%s: container %s is confined by %+v", overlay, c.Name, c.Security)
				}
				if c.Resources.Requests["cpu"] == "" || c.Resources.Requests["memory"] == "" {
					t.Errorf("%s: container %s asks for %v", overlay, c.Name, c.Resources.Requests)
				}
				memory := p.service().Environment["SLUICE_MEMORY"]
				if memory != "" && 2*bytesOf(t, memory) != bytesOf(t, c.Resources.Limits["memory"]) || c.Resources.Limits["memory"] == "" {
					t.Errorf("%s: container %s takes %s bytes and may take %s, want twice as many", overlay, c.Name, memory, c.Resources.Limits["memory"])
				}
			}
		}
	}
}

// bytesOf reads a quantity of memory.
func bytesOf(t *testing.T, quantity string) int64 {
	t.Helper()
	digits := strings.TrimRight(quantity, "GMi")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		t.Fatalf("%q is no quantity of memory", quantity)
	}
	return n << map[string]int{"": 0, "Mi": 20, "Gi": 30}[quantity[len(digits):]]
}

// TestKubernetesRefersToWhatIsThere: a selector that finds nothing, a port
// without a name or a file that is not mounted is no error for Kubernetes.
func TestKubernetesRefersToWhatIsThere(t *testing.T) {
	for _, overlay := range overlays {
		m := built(t, overlay)
		for name, p := range m.pods {
			c, ports, mounted := p.spec.Containers[0], map[string]int{}, []string{}
			for _, port := range c.Ports {
				ports[port.Name] = port.Port
			}
			for _, mount := range c.Mounts {
				i := slices.IndexFunc(p.spec.Volumes, func(v volume) bool { return v.Name == mount.Name })
				if i < 0 || p.spec.Volumes[i].Secret == nil || !mount.ReadOnly || len(p.spec.Volumes[i].Secret.Items) == 0 {
					t.Fatalf("%s: %s mounts %s, which is no secret to read some keys of", overlay, name, mount.Name)
				}
				for _, item := range p.spec.Volumes[i].Secret.Items {
					mounted = append(mounted, mount.Path+"/"+item.Path)
				}
			}
			for variable, value := range p.service().Environment {
				if strings.HasPrefix(value, "/") && !slices.Contains(mounted, value) {
					t.Errorf("%s: %s of %s names %s, which is not mounted", overlay, variable, name, value)
				}
				if listen, ok := strings.CutPrefix(value, "0.0.0.0:"); ok && !slices.Contains(slices.Collect(maps.Values(ports)), int(bytesOf(t, listen))) {
					t.Errorf("%s: %s of %s is no port of the container: %v", overlay, variable, name, ports)
				}
			}
			if p.labels[component] != name {
				t.Errorf("%s: pods of %s are labelled %v", overlay, name, p.labels)
			}
			if name == "streams" {
				continue // it ends by itself
			}
			for path, probe := range map[string]*probe{"/healthz": c.Liveness, "/readyz": c.Readiness} {
				if probe == nil || probe.Get.Path != path || probe.Get.Port != "ops" || c.Startup == nil {
					t.Errorf("%s: %s is not asked for %s", overlay, name, path)
				}
			}
			if _, port, _ := strings.Cut(p.service().Environment["SLUICE_OPS"], ":"); strconv.Itoa(ports["ops"]) != port {
				t.Errorf("%s: port ops of %s is %d, its metrics are at %s", overlay, name, ports["ops"], port)
			}
			s := m.services[name]
			if s.Selector[component] != name || s.labels[component] != name {
				t.Errorf("%s: Service %s selects %v and is labelled %v", overlay, name, s.Selector, s.labels)
			}
			for _, port := range s.Ports {
				if ports[port.Target] != port.Port {
					t.Errorf("%s: port %d of Service %s leads to %s, which is %d", overlay, port.Port, name, port.Target, ports[port.Target])
				}
			}
			if !slices.Contains(m.monitor.Selector.MatchExpressions[0].Values, name) || m.monitor.Endpoints[0].Port != "ops" || m.monitor.JobLabel != component {
				t.Errorf("%s: %s is not scraped by %+v", overlay, name, m.monitor)
			}
		}
		if want := map[string]string{"budget api": "api", "budget ingester": "ingester", "autoscaler api": "api"}; !maps.Equal(m.budgeted, want) {
			t.Errorf("%s: disruptions and scaling are of %v, want %v", overlay, m.budgeted, want)
		}
	}
}

// TestNetworkPoliciesLetThroughWhatProgramsNeed: every address that a program is
// given can be reached by its pods, every port of a pod by others, no more.
func TestNetworkPoliciesLetThroughWhatProgramsNeed(t *testing.T) {
	for _, overlay := range overlays {
		m := built(t, overlay)
		for name, p := range m.pods {
			in, out, closed := map[int]bool{}, map[int]bool{53: true}, false
			wantIn, wantOut := map[int]bool{}, map[int]bool{53: true}
			for _, policy := range m.policies {
				of := policy.Selector.Labels[component]
				if of != "" && of != name {
					continue
				}
				closed = closed || of == "" && slices.Equal(policy.Types, []string{"Ingress", "Egress"}) && len(policy.Ingress)+len(policy.Egress) == 0
				for _, rule := range policy.Ingress {
					for _, port := range rule.Ports {
						in[port.Port] = true
					}
				}
				for _, rule := range policy.Egress {
					for _, port := range rule.Ports {
						out[port.Port] = true
					}
				}
			}
			for _, port := range p.spec.Containers[0].Ports {
				wantIn[port.Port] = true
			}
			for _, value := range p.service().Environment {
				for _, address := range strings.Split(value, ",") {
					if u, err := url.Parse(address); err == nil && u.Host != "" && u.Port() != "" {
						wantOut[int(bytesOf(t, u.Port()))] = true
					} else if at := regexp.MustCompile(`^[a-z]+:(\d+)$`).FindStringSubmatch(address); at != nil {
						wantOut[int(bytesOf(t, at[1]))] = true
					}
				}
			}
			if !closed || !maps.Equal(in, wantIn) || !maps.Equal(out, wantOut) {
				t.Errorf("%s: %s is closed otherwise: %t; may be reached at %v and reach %v, want %v and %v", overlay, name, closed, in, out, wantIn, wantOut)
			}
		}
	}
}

// TestSecretsOfKubernetesAreReferences: no variable holds one.
func TestSecretsOfKubernetesAreReferences(t *testing.T) {
	secret := regexp.MustCompile(`PASSWORD|TOKEN|KEY|SECRET`)
	for _, overlay := range overlays {
		for name, p := range built(t, overlay).pods {
			for variable, value := range p.service().Environment {
				written := false
				if u, err := url.Parse(value); err == nil {
					_, written = u.User.Password()
				}
				if written || secret.MatchString(variable) && !strings.HasPrefix(value, "/run/sluice/") {
					t.Errorf("%s: %s of %s is written down", overlay, variable, name)
				}
			}
			for _, volume := range p.spec.Volumes {
				if volume.Secret.Mode != 0o440 {
					t.Errorf("%s: %s reads secret %s with mode %o", overlay, name, volume.Secret.Name, volume.Secret.Mode)
				}
			}
		}
	}
}

// TestAlertsOfKubernetesAreThoseOfPrometheus: one file of alerts, in the clothes
// that the Prometheus Operator wants.
func TestAlertsOfKubernetesAreThoseOfPrometheus(t *testing.T) {
	head := "# Written from deploy/prometheus/alerts.yml by go test ./deploy -run OfKubernetes -update.\n" +
		"apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: sluice\nspec:\n"
	_, groups, _ := strings.Cut(string(read(t, "prometheus/alerts.yml")), "\ngroups:\n")
	want := head + regexp.MustCompile(`(?m)^(.)`).ReplaceAllString("groups:\n"+groups, "  $1")
	if *update {
		fatal.If(t, os.WriteFile("kubernetes/base/rules.yaml", []byte(want), 0o644))
	}
	if diff := cmp.Diff(want, string(read(t, "kubernetes/base/rules.yaml"))); diff != "" {
		t.Errorf("rules.yaml is not fresh (-want +got):\n%s", diff)
	}
	var alerts struct{ Groups any }
	readYAML(t, "prometheus/alerts.yml", &alerts)
	for _, overlay := range overlays {
		var rules struct{ Groups any }
		m := built(t, overlay)
		fatal.If(t, m.rules.Decode(&rules))
		if diff := cmp.Diff(alerts, rules); diff != "" {
			t.Errorf("%s has other alerts (-want +got):\n%s", overlay, diff)
		}
	}
}

// TestProgramsKnowTheSettingsOfKubernetes: every variable of a pod is an option of its
// command line.
func TestProgramsKnowTheSettingsOfKubernetes(t *testing.T) {
	binaries := buildAll(t)
	for _, overlay := range overlays {
		for name, p := range built(t, overlay).pods {
			help, err := exec.Command(binaries[p.program()], append(slices.Clone(p.service().Command), "--help")...).CombinedOutput()
			if err != nil {
				t.Errorf("%s: the command line of %s: %v\n%s", overlay, name, err, help)
			}
			for variable := range p.service().Environment {
				if !bytes.Contains(help, []byte("($"+variable+")")) {
					t.Errorf("%s: %s does not know %s", overlay, name, variable)
				}
			}
		}
	}
}
