package kubernetes

import (
	"bytes"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	"sluice/pkg/fatal"
	"sluice/pkg/programtest"
)

const component = "app.kubernetes.io/component"

// pods returns the pod templates, by the names of their Deployments and Job.
func (m manifests) pods() map[string]core.PodTemplateSpec {
	all := map[string]core.PodTemplateSpec{}
	for _, object := range m {
		switch o := object.(type) {
		case *apps.Deployment:
			all[o.Name] = o.Spec.Template
		case *batch.Job:
			all[o.Name] = o.Spec.Template
		}
	}
	return all
}

// options returns the environment of a pod's container.
func options(p core.PodTemplateSpec) map[string]string {
	all := map[string]string{}
	for _, variable := range p.Spec.Containers[0].Env {
		all[variable.Name] = variable.Value
	}
	return all
}

func TestPodsAreConfined(t *testing.T) {
	everySize(t, func(t *testing.T, m manifests) {
		pods := m.pods()
		if got, want := slices.Sorted(maps.Keys(pods)), []string{"api", "console", "ingester", "streams"}; !slices.Equal(got, want) {
			t.Fatalf("the pods are %q, want %q", got, want)
		}
		no, yes, user := false, true, int64(65532)
		for name, p := range pods {
			if diff := cmp.Diff(&core.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user, FSGroup: &user,
				SeccompProfile: &core.SeccompProfile{Type: core.SeccompProfileTypeRuntimeDefault}}, p.Spec.SecurityContext); diff != "" {
				t.Errorf("pods of %s (-want +got):\n%s", name, diff)
			}
			if diff := cmp.Diff([]*bool{&no, &no}, []*bool{p.Spec.AutomountServiceAccountToken, p.Spec.EnableServiceLinks}); diff != "" {
				t.Errorf("pods of %s have a Kubernetes token, or variables of Services that begin with SLUICE_:\n%s", name, diff)
			}
			c := p.Spec.Containers[0]
			if diff := cmp.Diff(&core.SecurityContext{AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
				Capabilities: &core.Capabilities{Drop: []core.Capability{"ALL"}}}, c.SecurityContext); diff != "" {
				t.Errorf("security context of container %s (-want +got):\n%s", name, diff)
			}
			memory, _ := strconv.ParseInt(options(p)["SLUICE_MEMORY"], 10, 64)
			limit := c.Resources.Limits.Memory().Value()
			if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || limit == 0 || name != "streams" && 2*memory != limit {
				t.Errorf("container %s takes %d bytes, want half of its limit; it has %v", name, memory, c.Resources)
			}
		}
	})
}

// TestReferencesLeadSomewhere: Kubernetes accepts a selector without pods, a port without
// a name, and a file that is not mounted.
func TestReferencesLeadSomewhere(t *testing.T) {
	everySize(t, func(t *testing.T, m manifests) {
		for name, p := range m.pods() {
			c, ports, mounted := p.Spec.Containers[0], map[string]int32{}, []string{}
			for _, port := range c.Ports {
				ports[port.Name] = port.ContainerPort
			}
			for _, mount := range c.VolumeMounts {
				i := slices.IndexFunc(p.Spec.Volumes, func(v core.Volume) bool { return v.Name == mount.Name })
				if i < 0 || p.Spec.Volumes[i].Secret == nil || *p.Spec.Volumes[i].Secret.DefaultMode != 0o440 || !mount.ReadOnly {
					t.Fatalf("%s mounts %s, which is not a secret that only its user reads", name, mount.Name)
				}
				for _, item := range p.Spec.Volumes[i].Secret.Items {
					mounted = append(mounted, path.Join(mount.MountPath, item.Path))
				}
			}
			for variable, value := range options(p) {
				if strings.HasPrefix(value, "/") && !slices.Contains(mounted, value) {
					t.Errorf("%s of %s names %s, which is not mounted", variable, name, value)
				}
				listen, ok := strings.CutPrefix(value, "0.0.0.0:")
				if port, _ := strconv.Atoi(listen); ok && !slices.Contains(slices.Collect(maps.Values(ports)), int32(port)) {
					t.Errorf("%s of %s is not a port of the container: %v", variable, name, ports)
				}
			}
			if p.Labels[component] != name {
				t.Errorf("pods of %s are labelled %v", name, p.Labels)
			}
			if name == "streams" {
				continue // it exits
			}
			for path, probe := range map[string]*core.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
				if probe == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Port.String() != "ops" || c.StartupProbe == nil {
					t.Errorf("%s has no probe of %s", name, path)
				}
			}
			if _, port, _ := strings.Cut(options(p)["SLUICE_OPS"], ":"); strconv.Itoa(int(ports["ops"])) != port {
				t.Errorf("port ops of %s is %d, its metrics are at %s", name, ports["ops"], port)
			}
			s := m["Service "+name].(*core.Service)
			if !selects(s.Spec.Selector, p) || s.Labels[component] != name || !selects(m["Deployment "+name].(*apps.Deployment).Spec.Selector.MatchLabels, p) {
				t.Errorf("Service %s selects %v and is labelled %v, its pods are labelled %v", name, s.Spec.Selector, s.Labels, p.Labels)
			}
			for _, port := range s.Spec.Ports {
				if ports[port.TargetPort.String()] != port.Port {
					t.Errorf("port %d of Service %s leads to %s, which is %d", port.Port, name, &port.TargetPort, ports[port.TargetPort.String()])
				}
			}
			monitor := m["ServiceMonitor sluice"].(*monitoring.ServiceMonitor).Spec
			if !slices.Contains(monitor.Selector.MatchExpressions[0].Values, name) || monitor.Endpoints[0].Port != "ops" || monitor.JobLabel != component {
				t.Errorf("%s is not scraped by %+v", name, monitor)
			}
			if budget, ok := m["PodDisruptionBudget "+name].(*policy.PodDisruptionBudget); ok == (name == "console") || ok && !selects(budget.Spec.Selector.MatchLabels, p) {
				t.Errorf("%s has a disruption budget: %t, %v", name, ok, budget)
			}
		}
		if of := m["HorizontalPodAutoscaler api"].(*autoscaling.HorizontalPodAutoscaler).Spec.ScaleTargetRef.Name; of != "api" {
			t.Errorf("%s is autoscaled, want api", of)
		}
	})
}

// selects reports whether labels select a pod.
func selects(labels map[string]string, p core.PodTemplateSpec) bool {
	for label, value := range labels {
		if p.Labels[label] != value {
			return false
		}
	}
	return len(labels) > 0
}

// TestNetworkPoliciesLetThroughWhatProgramsNeed: pods reach every address that their
// program uses, and every port of a pod is reachable; nothing else is.
func TestNetworkPoliciesLetThroughWhatProgramsNeed(t *testing.T) {
	address := regexp.MustCompile(`^(?:[a-z]+://)?(?:[a-z_]+@)?[a-z][a-z0-9.-]*:(\d+)(?:/.*)?$`)
	everySize(t, func(t *testing.T, m manifests) {
		for name, p := range m.pods() {
			in, out, closed := map[string]bool{}, map[string]bool{}, false
			wantIn, wantOut := map[string]bool{}, map[string]bool{"53": true}
			for _, object := range m {
				policy, ok := object.(*networking.NetworkPolicy)
				if !ok || len(policy.Spec.PodSelector.MatchLabels) > 0 && !selects(policy.Spec.PodSelector.MatchLabels, p) {
					continue
				}
				closed = closed || len(policy.Spec.PodSelector.MatchLabels) == 0 && len(policy.Spec.PolicyTypes) == 2 && len(policy.Spec.Ingress)+len(policy.Spec.Egress) == 0
				for _, rule := range policy.Spec.Ingress {
					for _, port := range rule.Ports {
						in[port.Port.String()] = true
					}
				}
				for _, rule := range policy.Spec.Egress {
					for _, port := range rule.Ports {
						out[port.Port.String()] = true
					}
				}
			}
			for _, port := range p.Spec.Containers[0].Ports {
				wantIn[strconv.Itoa(int(port.ContainerPort))] = true
			}
			for _, value := range options(p) {
				for one := range strings.SplitSeq(value, ",") {
					if at := address.FindStringSubmatch(one); at != nil {
						wantOut[at[1]] = true
					}
				}
			}
			if !closed || !maps.Equal(in, wantIn) || !maps.Equal(out, wantOut) {
				t.Errorf("%s is isolated: %t; ingress %v and egress %v, want %v and %v", name, closed, in, out, wantIn, wantOut)
			}
		}
	})
}

// TestSecretsAreReferences: no variable has a secret value.
func TestSecretsAreReferences(t *testing.T) {
	secret := regexp.MustCompile(`PASSWORD|TOKEN|KEY|SECRET`)
	everySize(t, func(t *testing.T, m manifests) {
		for name, p := range m.pods() {
			for variable, value := range options(p) {
				written := false
				if u, err := url.Parse(value); err == nil {
					_, written = u.User.Password()
				}
				if written || secret.MatchString(variable) && !strings.HasPrefix(value, "/run/sluice/") {
					t.Errorf("%s of %s contains a secret", variable, name)
				}
			}
		}
	})
}

// TestAlertsAreThoseOfPrometheus: Helm must not expand the templates of the alerts.
func TestAlertsAreThoseOfPrometheus(t *testing.T) {
	text, err := os.ReadFile("../../../../deploy/prometheus/alerts.yml")
	fatal.If(t, err)
	var want monitoring.PrometheusRuleSpec
	fatal.If(t, yaml.UnmarshalStrict(text, &want))
	everySize(t, func(t *testing.T, m manifests) {
		if diff := cmp.Diff(want, m["PrometheusRule sluice"].(*monitoring.PrometheusRule).Spec); diff != "" {
			t.Errorf("other alerts (-want +got):\n%s", diff)
		}
	})
}

// TestProgramsHaveTheirOptions: every variable of a pod is an option of its program.
func TestProgramsHaveTheirOptions(t *testing.T) {
	bin := t.TempDir()
	fatal.If(t, programtest.BuildPlain(t.Context(), bin))
	everySize(t, func(t *testing.T, m manifests) {
		for name, p := range m.pods() {
			c := p.Spec.Containers[0]
			image, _, _ := strings.Cut(path.Base(c.Image), ":")
			help, err := exec.Command(path.Join(bin, strings.TrimPrefix(image, "sluice-")), append(slices.Clone(c.Args), "--help")...).CombinedOutput()
			if err != nil {
				t.Errorf("the command line of %s: %v\n%s", name, err, help)
			}
			for variable := range options(p) {
				if !bytes.Contains(help, []byte("($"+variable+")")) {
					t.Errorf("%s has no option %s", name, variable)
				}
			}
		}
	})
}
