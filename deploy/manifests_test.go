package deploy_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// manifests is what an overlay is built into.
type manifests struct {
	pods     map[string]pod // by name of their Deployment or Job
	services map[string]front
	policies []networkPolicy
	monitor  struct {
		JobLabel  string `yaml:"jobLabel"`
		Endpoints []struct{ Port string }
		Selector  struct {
			MatchExpressions []struct {
				Key    string
				Values []string
			} `yaml:"matchExpressions"`
		}
	}
	rules    yaml.Node
	budgeted map[string]string // names of PodDisruptionBudgets and autoscalers, and the component they are for
}

// front is a Service.
type front struct {
	labels   map[string]string
	Selector map[string]string
	Ports    []struct {
		Port   int
		Target string `yaml:"targetPort"`
	}
}

type pod struct {
	labels map[string]string
	spec   podSpec
}

type podSpec struct {
	Automount    *bool `yaml:"automountServiceAccountToken"`
	ServiceLinks *bool `yaml:"enableServiceLinks"`
	Security     struct {
		NonRoot bool                  `yaml:"runAsNonRoot"`
		User    int                   `yaml:"runAsUser"`
		Group   int                   `yaml:"runAsGroup"`
		FSGroup int                   `yaml:"fsGroup"`
		Seccomp struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	Containers []struct {
		Name, Image   string
		Command, Args []string
		Env           []struct {
			Name, Value string
			From        yaml.Node `yaml:"valueFrom"`
		}
		Ports []struct {
			Name string
			Port int `yaml:"containerPort"`
		}
		Startup   *probe `yaml:"startupProbe"`
		Liveness  *probe `yaml:"livenessProbe"`
		Readiness *probe `yaml:"readinessProbe"`
		Resources struct{ Limits, Requests map[string]string }
		Security  struct {
			Escalation   *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnly     bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities struct{ Drop, Add []string }
		} `yaml:"securityContext"`
		Mounts []struct {
			Name     string
			Path     string `yaml:"mountPath"`
			ReadOnly bool   `yaml:"readOnly"`
		} `yaml:"volumeMounts"`
	}
	Volumes []volume
}

type volume struct {
	Name   string
	Secret *struct {
		Name  string `yaml:"secretName"`
		Mode  int    `yaml:"defaultMode"`
		Items []struct{ Key, Path string }
	}
}

type probe struct {
	Get struct{ Path, Port string } `yaml:"httpGet"`
}

type networkPolicy struct {
	Selector struct {
		Labels map[string]string `yaml:"matchLabels"`
	} `yaml:"podSelector"`
	Types   []string `yaml:"policyTypes"`
	Ingress []struct{ Ports []struct{ Port int } }
	Egress  []struct{ Ports []struct{ Port int } }
}

// built reads what an overlay is built into.
func built(t *testing.T, overlay string) manifests {
	t.Helper()
	m := manifests{pods: map[string]pod{}, services: map[string]front{}, budgeted: map[string]string{}}
	file := "kubernetes/" + overlay + ".yaml"
	decode := func(node yaml.Node, into any) {
		if err := node.Decode(into); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	for documents := yaml.NewDecoder(bytes.NewReader(read(t, file))); ; {
		var one struct {
			Kind     string
			Metadata struct {
				Name   string
				Labels map[string]string
			}
			Spec yaml.Node
		}
		if err := documents.Decode(&one); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		name := one.Metadata.Name
		switch one.Kind {
		case "Deployment", "Job":
			var spec struct {
				Template struct {
					Metadata struct{ Labels map[string]string }
					Spec     podSpec
				}
			}
			decode(one.Spec, &spec)
			m.pods[name] = pod{spec.Template.Metadata.Labels, spec.Template.Spec}
		case "Service":
			spec := front{labels: one.Metadata.Labels}
			decode(one.Spec, &spec)
			m.services[name] = spec
		case "NetworkPolicy":
			var policy networkPolicy
			decode(one.Spec, &policy)
			m.policies = append(m.policies, policy)
		case "PodDisruptionBudget":
			var spec struct {
				Selector struct {
					Labels map[string]string `yaml:"matchLabels"`
				}
			}
			decode(one.Spec, &spec)
			m.budgeted["budget "+name] = spec.Selector.Labels[component]
		case "HorizontalPodAutoscaler":
			var spec struct {
				Target struct{ Name string } `yaml:"scaleTargetRef"`
			}
			decode(one.Spec, &spec)
			m.budgeted["autoscaler "+name] = spec.Target.Name
		case "ServiceMonitor":
			decode(one.Spec, &m.monitor)
		case "PrometheusRule":
			m.rules = one.Spec
		}
	}
	return m
}

const component = "app.kubernetes.io/component"

// service is what a pod is to these tests: a service as docker compose has it.
func (p pod) service() service {
	c := p.spec.Containers[0]
	s := service{Image: c.Image, Command: c.Args, Environment: map[string]string{}, ReadOnly: c.Security.ReadOnly,
		User: fmt.Sprintf("%d:%d", p.spec.Security.User, p.spec.Security.Group)}
	for _, variable := range c.Env {
		s.Environment[variable.Name] = variable.Value
	}
	return s
}

// program is the one that the image of a pod runs.
func (p pod) program() string {
	name := p.spec.Containers[0].Image
	name = strings.TrimPrefix(name[strings.LastIndex(name, "/")+1:], "sluice-")
	name, _, _ = strings.Cut(name, ":")
	return name
}
