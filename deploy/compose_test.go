package deploy_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/programtest"
)

// composeFile is the part of docker-compose.yml that is tested.
type composeFile struct {
	Services map[string]service     `yaml:"services"`
	Networks map[string]yamlIgnored `yaml:"networks"`
	Volumes  map[string]yamlIgnored `yaml:"volumes"`
}

type yamlIgnored struct{}

type service struct {
	Image string `yaml:"image"`
	Build struct {
		Target string `yaml:"target"`
	} `yaml:"build"`
	Environment map[string]string            `yaml:"environment"`
	Volumes     []string                     `yaml:"volumes"`
	Ports       []string                     `yaml:"ports"`
	DependsOn   map[string]map[string]string `yaml:"depends_on"`
	Restart     string                       `yaml:"restart"`
	NetworkMode string                       `yaml:"network_mode"`
	ReadOnly    bool                         `yaml:"read_only"`
	User        string                       `yaml:"user"`
	Entrypoint  []string                     `yaml:"entrypoint"`
	Command     []string                     `yaml:"command"`
	CapDrop     []string                     `yaml:"cap_drop"`
	CapAdd      []string                     `yaml:"cap_add"`
	PidsLimit   int                          `yaml:"pids_limit"`
	MemLimit    string                       `yaml:"mem_limit"`
	Networks    []string                     `yaml:"networks"`
	Profiles    []string                     `yaml:"profiles"` // not started by "up"
	Healthcheck *struct {
		Test []string `yaml:"test"`
	} `yaml:"healthcheck"`
}

func compose(t *testing.T) composeFile {
	t.Helper()
	var c composeFile
	readYAML(t, "../docker-compose.yml", &c)
	for _, name := range []string{"nats", "clickhouse", "api", "ingester", "prometheus", "grafana"} {
		if _, ok := c.Services[name]; !ok {
			t.Fatalf("docker-compose.yml has no service %s", name)
		}
	}
	return c
}

func TestComposePublishesOnLoopbackOnly(t *testing.T) {
	published := 0
	for name, s := range compose(t).Services {
		for _, port := range s.Ports {
			published++
			expect.Not(t, !strings.HasPrefix(port, "127.0.0.1:"), "%s publishes %s beyond this machine", name, port)
		}
	}
	expect.Not(t, published == 0, "nothing is published")
}

// byTag are the services whose image has a tag without a digest: deploy/README.md describes
// how to pin it.
var byTag = map[string]bool{"clickhouse": true, "alertmanager": true}

func TestComposeServicesAreWatchedAndPinned(t *testing.T) {
	c := compose(t)
	stages := dockerStages(t)
	for name, s := range c.Services {
		built := s.Build.Target != ""
		watched := s.Healthcheck != nil || built && stages[s.Build.Target].health != nil
		once := len(s.Profiles) > 0 || s.Restart == "" && awaited(c, name)
		if !once && (!watched || s.Restart != "unless-stopped") {
			t.Errorf("%s has a health check: %t, restarts: %q; want both", name, watched, s.Restart)
		}
		if _, tag, _ := strings.Cut(s.Image, ":"); !built && (tag == "" || tag == "latest") {
			t.Errorf("%s runs %s, a tag that moves", name, s.Image)
		}
		if digest := regexp.MustCompile(`:[^@]+@sha256:[0-9a-f]{64}$`); !built && !byTag[name] && !digest.MatchString(s.Image) {
			t.Errorf("%s runs %s, which is not pinned by its digest", name, s.Image)
		}
		expect.Not(t, built && !s.ReadOnly, "%s can write its own image", name)
		for on, how := range s.DependsOn {
			if _, ok := c.Services[on]; !ok || how["condition"] == "" {
				t.Errorf("%s depends on %s by %v", name, on, how)
			}
		}
		for _, volume := range s.Volumes {
			checkVolume(t, c, name, volume)
		}
	}
}

// awaited reports whether other services wait until a service exits, as for secrets and
// streams.
func awaited(c composeFile, name string) bool {
	for _, s := range c.Services {
		if s.DependsOn[name]["condition"] == "service_completed_successfully" {
			return true
		}
	}
	return false
}

func TestComposeServicesAreConfined(t *testing.T) {
	for name, s := range compose(t).Services {
		if !slices.Equal(s.CapDrop, []string{"ALL"}) || len(s.CapAdd) > 0 {
			t.Errorf("%s drops the capabilities %q and adds %q, want all of them dropped", name, s.CapDrop, s.CapAdd)
		}
		if s.PidsLimit <= 0 || s.MemLimit == "" {
			t.Errorf("%s may start %d processes and take %q of memory, want a limit of both", name, s.PidsLimit, s.MemLimit)
		}
	}
}

// TestComposeSeparatesFrontAndBack: from Grafana or a client's network, NATS and ClickHouse
// are unreachable.
func TestComposeSeparatesFrontAndBack(t *testing.T) {
	c := compose(t)
	if got := slices.Sorted(maps.Keys(c.Networks)); !slices.Equal(got, []string{"back", "front"}) {
		t.Fatalf("the networks are %q, want back and front", got)
	}
	front, back := []string{"front"}, []string{"back"}
	want := map[string][]string{
		"secrets": nil, // network_mode: none
		"grafana": front, "alertmanager": front, "api": {"front", "back"}, "console": {"front", "back"}, "prometheus": {"front", "back"},
		"nats": back, "clickhouse": back, "ingester": back, "sluice": back, "streams": back,
	}
	for name, s := range c.Services {
		networks, known := want[name]
		if !known || !slices.Equal(s.Networks, networks) || len(networks) == 0 && s.NetworkMode != "none" {
			t.Errorf("%s is on %q, want %q", name, s.Networks, networks)
		}
	}
}

// checkVolume fails if a mounted file is missing: docker would create an empty folder.
func checkVolume(t *testing.T, c composeFile, service, volume string) {
	source, rest, _ := strings.Cut(volume, ":")
	if !strings.HasPrefix(source, "./") {
		if _, ok := c.Volumes[source]; !ok {
			t.Errorf("%s mounts volume %s, which is not declared", service, source)
		}
		return
	}
	if _, err := os.Stat(filepath.Join("..", source)); err != nil {
		t.Errorf("%s mounts a missing file: %v", service, err)
	}
	expect.Not(t, !strings.HasSuffix(rest, ":ro"), "%s may write %s of the repository", service, source)
}

func TestComposeHoldsNoSecret(t *testing.T) {
	secret := regexp.MustCompile(`(?i)(password|token|secret)`)
	for name, s := range compose(t).Services {
		for variable, value := range s.Environment {
			given := strings.HasPrefix(value, "${") || strings.HasPrefix(value, "/")
			expect.Not(t, secret.MatchString(variable) && !given, "%s: %s is written down", name, variable)
			if _, login, ok := strings.Cut(value, "://"); ok && strings.Contains(login, "@") && !strings.Contains(login, ":${") {
				t.Errorf("%s: %s contains a password", name, variable)
			}
		}
	}
}

// stage is an image of the Dockerfile.
type stage struct {
	base, entrypoint string
	env              map[string]string
	health           []string
}

func dockerStages(t *testing.T) map[string]stage {
	t.Helper()
	stages := map[string]stage{}
	var name string
	var s stage
	words := regexp.MustCompile(`"([^"]+)"`)
	for line := range strings.Lines(string(read(t, "Dockerfile"))) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case fields[0] == "FROM":
			name, s = fields[3], stage{base: fields[1], env: map[string]string{}}
		case fields[0] == "ENV":
			for _, setting := range fields[1:] {
				key, value, _ := strings.Cut(setting, "=")
				s.env[key] = value
			}
		case fields[0] == "ENTRYPOINT":
			s.entrypoint = words.FindStringSubmatch(line)[1]
		case fields[0] == "HEALTHCHECK":
			for _, word := range words.FindAllStringSubmatch(line, -1) {
				s.health = append(s.health, word[1])
			}
		}
		stages[name] = s
	}
	return stages
}

// TestStaticImagesHoldStaticPrograms: a program that loads the engine needs a C library,
// which the static image lacks.
func TestStaticImagesHoldStaticPrograms(t *testing.T) {
	for name, stage := range dockerStages(t) {
		if stage.entrypoint == "" {
			continue
		}
		out, err := exec.Command("go", "list", "-deps", "sluice/cmd/"+name).Output()
		fatal.When(t, err != nil, "list the packages of %s: %v", name, err)
		loads := strings.Contains(string(out), "github.com/ebitengine/purego\n")
		if static := strings.Contains(stage.base, "/static-"); static == loads {
			t.Errorf("%s is built on %s, and loads libraries: %t", name, stage.base, loads)
		}
		expect.Not(t, !strings.HasSuffix(stage.base, ":nonroot"), "%s runs as root: %s", name, stage.base)
	}
}

// buildAll builds the three programs in a folder that every user can read.
func buildAll(t *testing.T) map[string]string {
	t.Helper()
	dir := reachable(t)
	fatal.If(t, programtest.BuildPlain(t.Context(), dir))
	all := map[string]string{}
	for _, name := range []string{"api", "ingester", "sluice"} {
		all[name] = filepath.Join(dir, name)
	}
	return all
}
