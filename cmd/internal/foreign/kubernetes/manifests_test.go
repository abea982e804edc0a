package kubernetes

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write what is built next to the overlays instead of comparing it")

const folder = "../../../../deploy/kubernetes"

// kinds are the types of the APIs for what we have.
var kinds = map[string]func() meta.Object{
	"v1/Namespace":                            func() meta.Object { return new(core.Namespace) },
	"v1/Service":                              func() meta.Object { return new(core.Service) },
	"apps/v1/Deployment":                      func() meta.Object { return new(apps.Deployment) },
	"batch/v1/Job":                            func() meta.Object { return new(batch.Job) },
	"autoscaling/v2/HorizontalPodAutoscaler":  func() meta.Object { return new(autoscaling.HorizontalPodAutoscaler) },
	"policy/v1/PodDisruptionBudget":           func() meta.Object { return new(policy.PodDisruptionBudget) },
	"networking.k8s.io/v1/NetworkPolicy":      func() meta.Object { return new(networking.NetworkPolicy) },
	"monitoring.coreos.com/v1/ServiceMonitor": func() meta.Object { return new(monitoring.ServiceMonitor) },
	"monitoring.coreos.com/v1/PrometheusRule": func() meta.Object { return new(monitoring.PrometheusRule) },
}

// TestOverlaysAreBuiltAndStrictlyRead builds each overlay, reads every object
// into its type, in which a member that the API does not know is an error, and
// holds the whole against the file that is applied without kustomize.
func TestOverlaysAreBuiltAndStrictlyRead(t *testing.T) {
	overlays, err := filepath.Glob(folder + "/overlays/*")
	if err != nil || len(overlays) < 2 {
		t.Fatalf("the overlays are %q, %v", overlays, err)
	}
	for _, overlay := range overlays {
		name := filepath.Base(overlay)
		t.Run(name, func(t *testing.T) {
			built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), overlay)
			if err != nil {
				t.Fatal(err)
			}
			seen := map[string]int{}
			for _, resource := range built.Resources() {
				text, err := resource.AsYAML()
				if err != nil {
					t.Fatal(err)
				}
				kind := strings.TrimPrefix(resource.GetApiVersion()+"/"+resource.GetKind(), "/")
				object, ok := kinds[kind]
				if !ok {
					t.Errorf("%s has a %s, which is not expected here", resource.GetName(), kind)
					continue
				}
				seen[kind]++
				read := object()
				if err := yaml.UnmarshalStrict(text, read); err != nil {
					t.Errorf("%s %s: %v", kind, resource.GetName(), err)
				}
				if kind != "v1/Namespace" && read.GetNamespace() != "sluice" {
					t.Errorf("%s %s is in namespace %q", kind, read.GetName(), read.GetNamespace())
				}
			}
			for kind := range kinds {
				if seen[kind] == 0 {
					t.Errorf("there is no %s", kind)
				}
			}
			text, err := built.AsYaml()
			if err != nil {
				t.Fatal(err)
			}
			head := "# Built from overlays/" + name + " by go test in cmd/internal/foreign/kubernetes with -update.\n"
			text = append([]byte(head), text...)
			file := filepath.Join(folder, name+".yaml")
			if *update {
				if err := os.WriteFile(file, text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if is, err := os.ReadFile(file); err != nil || !bytes.Equal(is, text) {
				t.Errorf("%s is not what the overlay builds, run go test -update in cmd/internal/foreign/kubernetes: %v", file, err)
			}
		})
	}
}

// TestAMistakeIsNotRead: strict means that a misspelt member is found.
func TestAMistakeIsNotRead(t *testing.T) {
	for kind, object := range kinds {
		if err := yaml.UnmarshalStrict([]byte("spec: {enableServiceLink: false}\nspecs: {}\n"), object()); err == nil {
			t.Errorf("%s takes what it does not know", kind)
		}
	}
}
