package kubernetes

import (
	"flag"
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	alpha "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1alpha1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"sluice/pkg/fatal"
)

var out = flag.String("out", "", "folder to write the rendered manifests into, for validators that others make")

const folder = "../../../../deploy/kubernetes/chart"

// sizes are the rendered installations, by the files of their values.
var sizes = map[string][]string{"small": {"small"}, "r3": {"r3"}, "sharded": {"r3", "sharded"}}

// kinds are the API types of the chart's objects.
var kinds = map[string]func() meta.Object{
	"v1/Service":                              func() meta.Object { return new(core.Service) },
	"apps/v1/Deployment":                      func() meta.Object { return new(apps.Deployment) },
	"batch/v1/Job":                            func() meta.Object { return new(batch.Job) },
	"autoscaling/v2/HorizontalPodAutoscaler":  func() meta.Object { return new(autoscaling.HorizontalPodAutoscaler) },
	"policy/v1/PodDisruptionBudget":           func() meta.Object { return new(policy.PodDisruptionBudget) },
	"networking.k8s.io/v1/NetworkPolicy":      func() meta.Object { return new(networking.NetworkPolicy) },
	"monitoring.coreos.com/v1/ServiceMonitor": func() meta.Object { return new(monitoring.ServiceMonitor) },
	"monitoring.coreos.com/v1/PrometheusRule": func() meta.Object { return new(monitoring.PrometheusRule) },

	"monitoring.coreos.com/v1alpha1/ScrapeConfig":       func() meta.Object { return new(alpha.ScrapeConfig) },
	"monitoring.coreos.com/v1alpha1/AlertmanagerConfig": func() meta.Object { return new(alpha.AlertmanagerConfig) },
}

// manifests are the objects of an installation, by kind and name.
type manifests map[string]meta.Object

// rendered renders the chart with files of values and further values.
func rendered(files []string, further string) (string, error) {
	chart, err := loader.Load(folder)
	if err != nil {
		return "", err
	}
	values := chartutil.Values{}
	for _, file := range files {
		more, err := chartutil.ReadValuesFile(filepath.Join(folder, "values", file+".yaml"))
		if err != nil {
			return "", err
		}
		values = chartutil.CoalesceTables(more, values)
	}
	more, err := chartutil.ReadValues([]byte(further))
	if err != nil {
		return "", err
	}
	release := chartutil.ReleaseOptions{Name: "sluice", Namespace: "sluice", IsInstall: true}
	values, err = chartutil.ToRenderValues(chart, chartutil.CoalesceTables(more, values), release, nil)
	if err != nil {
		return "", err
	}
	texts, err := engine.Engine{Strict: true}.Render(chart, values)
	return strings.Join(slices.Sorted(maps.Values(texts)), "\n---\n"), err
}

// read decodes manifests strictly: an unknown member is an error.
func read(t *testing.T, text string) manifests {
	t.Helper()
	all := manifests{}
	for _, document := range regexp.MustCompile(`(?m)^---$`).Split(text, -1) {
		var head meta.TypeMeta
		fatal.If(t, yaml.Unmarshal([]byte(document), &head))
		if head.Kind == "" {
			continue
		}
		object, ok := kinds[head.APIVersion+"/"+head.Kind]
		if !ok {
			t.Fatalf("the chart has a %s %s, which is not expected here", head.APIVersion, head.Kind)
		}
		read := object()
		if err := yaml.UnmarshalStrict([]byte(document), read); err != nil {
			t.Errorf("%s: %v\n%s", head.Kind, err, document)
		}
		all[head.Kind+" "+read.GetName()] = read
	}
	return all
}

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // Helm logs the link to the alerts
	os.Exit(m.Run())
}

// everySize renders each installation, one of them with all optional values.
func everySize(t *testing.T, check func(t *testing.T, m manifests)) {
	everything := `{api: {tlsSecret: api-tls, env: {SLUICE_RATE: "10"}}, jwt: {issuer: i, audience: a, jwks: "https://issuer:8443/keys"},
		monitoring: {labels: {release: prometheus}}, pod: {imagePullSecrets: [{name: registry}]}, nats: {monitors: []}}`
	for name, files := range sizes {
		further := ""
		if name == "sharded" {
			further = everything
		}
		t.Run(name, func(t *testing.T) {
			text, err := rendered(files, further)
			fatal.If(t, err)
			check(t, read(t, text))
		})
	}
}

// TestTheChartIsRendered: every kind is rendered; every size is written for other validators.
func TestTheChartIsRendered(t *testing.T) {
	for name, files := range sizes {
		text, err := rendered(files, "")
		fatal.If(t, err)
		m, seen := read(t, text), map[string]bool{}
		for key := range m {
			kind, _, _ := strings.Cut(key, " ")
			seen[kind] = true
		}
		if len(seen) != len(kinds) {
			t.Errorf("%s has %v, want all of %d kinds", name, seen, len(kinds))
		}
		if *out != "" {
			fatal.If(t, os.MkdirAll(*out, 0o755))
			fatal.If(t, os.WriteFile(filepath.Join(*out, name+".yaml"), []byte(text), 0o644))
		}
	}
}

// TestWrongValuesAreRefused: values.schema.json rejects wrong values, and the strict reader
// unknown members.
func TestWrongValuesAreRefused(t *testing.T) {
	for _, wrong := range []string{
		"{ingestor: {replicas: 1}}", "{ingester: {replicas: 0}}", "{nats: {replicas: 2}}", "{api: {env: {RATE: '1'}}}",
		"{nats: {servers: ['nats://user:secret@nats:4222']}}", "{clickhouse: {servers: ['clickhouse://a:9000']}}", "{jwt: {jwks: 'http://issuer'}}",
	} {
		if _, err := rendered(nil, wrong); err == nil {
			t.Errorf("the chart accepts %s", wrong)
		}
	}
	for kind, object := range kinds {
		if err := yaml.UnmarshalStrict([]byte("spec: {enableServiceLink: false}\nspecs: {}\n"), object()); err == nil {
			t.Errorf("%s accepts an unknown member", kind)
		}
	}
}

// TestDisabledPartsAreLeftOut: clusters without the Prometheus Operator or network policies.
func TestDisabledPartsAreLeftOut(t *testing.T) {
	text, err := rendered(nil, "{monitoring: {enabled: false}, networkPolicies: {enabled: false}}")
	fatal.If(t, err)
	for key := range read(t, text) {
		if regexp.MustCompile(`^(ServiceMonitor|ScrapeConfig|AlertmanagerConfig|PrometheusRule|NetworkPolicy) `).MatchString(key) {
			t.Errorf("%s is rendered", key)
		}
	}
}
