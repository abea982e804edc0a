package deploy_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/fatal"
	"sluice/pkg/load"
	"sluice/pkg/programtest"
)

// rare metrics have no series before their first event, or without an embedded server.
var rare = map[string]bool{
	"sluice_stream_retries_total":             true,
	"sluice_stream_purged_messages_total":     true,
	"sluice_clickhouse_engine_restarts_total": true,
	"sluice_clickhouse_engine_up":             true,
	"sluice_data_free_bytes":                  true,
	"sluice_data_size_bytes":                  true,
	"sluice_api_rejected_clients_total":       true,
	"sluice_stuck_instances":                  true,
}

// TestSluiceRunsInTheEnvironmentOfCompose starts api, ingester and console with the
// variables of docker-compose.yml and the secrets of secrets.sh, as their users in read-only
// folders, with servers that require passwords, and stores records. Only addresses and paths
// differ.
func TestSluiceRunsInTheEnvironmentOfCompose(t *testing.T) {
	root, made := makeSecrets(t)
	secrets := variables(made[".env"])
	natsPasswords(t, secrets)
	nats := startNATS(t)
	engine := clickhousetest.Start(t, func(c *server.Config) {
		c.User, c.Password = "flow_writer", secrets["FLOW_WRITER_PASSWORD"]
	})
	mounted := mount(t, filepath.Join(root, "deploy/secrets/api"))
	door, apiOps, ingesterOps, page, pageOps := programtest.Address(), programtest.Address(), programtest.Address(), programtest.Address(), programtest.Address()
	place := strings.NewReplacer(
		"@nats:4222", "@"+hostOf(t, nats.ClientURL()), "http://nats:8222", nats.MonitorURL(), "@clickhouse:9000", "@"+engine.Addr(),
		"0.0.0.0:8080", door, "0.0.0.0:8081", apiOps, "0.0.0.0:8082", ingesterOps,
		"0.0.0.0:8083", page, "0.0.0.0:8084", pageOps, "api:8081,ingester:8082", apiOps+","+ingesterOps,
		"//flow_console:"+secrets["FLOW_CONSOLE_PASSWORD"], "//flow_writer:"+secrets["FLOW_WRITER_PASSWORD"], // the only user of the test's server
		"/etc/sluice/", mounted+"/", "//api:8080", "//"+door,
	)
	d := deployed{services: compose(t).Services, door: door, apiOps: apiOps, ingesterOps: ingesterOps,
		engine: engine, token: strings.TrimSpace(made["deploy/secrets/token"])}
	d.environment = func(name string) (env []string) {
		for key, value := range d.services[name].Environment {
			value = os.Expand(value, func(name string) string { return secrets[strings.TrimSuffix(name, "-")] })
			env = append(env, key+"="+place.Replace(value))
		}
		return env
	}
	binaries := buildAll(t)
	d.store(t, binaries)

	for _, arguments := range []string{"lanes list", "migrate", "load --records 100"} {
		cmd := confined(t, d.services["sluice"], binaries["sluice"], strings.Fields(arguments)...)
		cmd.Env = append(d.environment("sluice"), "SLUICE_TOKEN="+d.token)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("sluice %s: %v\n%s", arguments, err, out)
		}
	}

	programtest.Eventually(t, time.Minute, func() error {
		shown := signedIn(t, "http://"+page, d.token)
		if !strings.Contains(shown, "<td>running</td>") || !strings.Contains(shown, ">20,100</a> rows") {
			return fmt.Errorf("the console shows\n%s", shown)
		}
		return nil
	})
	programtest.Eventually(t, time.Minute, func() error {
		if missing := withoutSeries(t, scrape(t, apiOps)+scrape(t, ingesterOps)+scrape(t, pageOps)); len(missing) > 0 {
			return fmt.Errorf("alerts and dashboards use metrics that have no series: %q", missing)
		}
		return nil
	})
}

// deployed is a deployment as of docker compose or Kubernetes, with addresses and paths of a
// test.
type deployed struct {
	services                  map[string]service
	environment               func(name string) []string
	door, apiOps, ingesterOps string
	token                     string
	engine                    *clickhousetest.Engine
}

// store creates the streams, starts ingester, api and console, and stores records.
func (d deployed) store(t *testing.T, binaries map[string]string) {
	t.Helper()
	cmd := confined(t, d.services["streams"], binaries["sluice"], d.services["streams"].Command...)
	cmd.Env = d.environment("streams")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("create the streams: %v\n%s", err, out)
	}
	for _, name := range []string{"ingester", "api"} {
		start(t, d.services[name], binaries[name], d.environment(name))
	}
	start(t, d.services["console"], binaries["sluice"], d.environment("console"))
	report, err := load.Run(t.Context(), load.Config{URL: "http://" + d.door, Token: d.token, Records: 20_000, Gzip: true})
	fatal.If(t, err)
	programtest.Eventually(t, time.Minute, func() error {
		if stored := strings.TrimSpace(clickhousetest.Exec(t, d.engine, report.Acked.Query())); stored != report.Acked.Row() {
			return fmt.Errorf("stored %s, acknowledged %s", stored, report.Acked.Row())
		}
		return nil
	})
}

// withoutSeries are our metrics in alerts and dashboards that a scrape lacks.
func withoutSeries(t *testing.T, scraped string) []string {
	t.Helper()
	var missing []string
	for _, expr := range expressions(t) {
		for _, name := range metricsOf(expr) {
			series := regexp.MustCompile(`(?m)^` + name + `[ {]`)
			if strings.HasPrefix(name, "sluice_") && !rare[name] && !series.MatchString(scraped) {
				missing = append(missing, name)
			}
		}
	}
	return missing
}

// start starts the program of a service and waits until it is ready. At the end of the test
// the program must exit with 0 on a signal.
func start(t *testing.T, s service, program string, env []string) {
	t.Helper()
	cmd := confined(t, s, program, s.Command...)
	cmd.Env = env
	p := programtest.Start(t, filepath.Base(program), cmd, true)
	programtest.Eventually(t, time.Minute, func() error {
		select {
		case <-p.Exited():
			t.Fatalf("%s ended before it was ready", program)
		default:
		}
		check := confined(t, s, program, append(slices.Clone(s.Command), "--healthcheck")...)
		check.Env = env
		if answer, err := check.CombinedOutput(); err != nil {
			return fmt.Errorf("%s is not ready: %w: %s", program, err, answer)
		}
		return nil
	})
}

func scrape(t *testing.T, address string) string {
	t.Helper()
	answer, err := http.Get("http://" + address + "/metrics")
	fatal.If(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	fatal.If(t, err)
	return string(text)
}

func hostOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	fatal.If(t, err)
	return u.Host
}

// variables reads the lines NAME=value of .env.
func variables(env string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(env) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		all[name] = value
	}
	return all
}

// signedIn returns the console's overview for a user with a token.
func signedIn(t *testing.T, at, token string) string {
	t.Helper()
	jar, err := cookiejar.New(nil)
	fatal.If(t, err)
	client := &http.Client{Jar: jar, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	res, err := client.PostForm(at+"/sign-in", url.Values{"token": {token}})
	if err != nil {
		return err.Error() // not listening yet
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err.Error()
	}
	return string(body)
}
