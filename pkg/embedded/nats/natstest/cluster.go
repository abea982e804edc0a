package natstest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/fatal"
	"sluice/pkg/programtest"
)

// Cluster is a cluster of NATS servers, configured by files as in production. They stop
// with the test.
type Cluster struct {
	URL     string // of all of them
	t       testing.TB
	servers []*Server
}

// StartCluster starts n servers and waits until JetStream has a leader.
func StartCluster(t testing.TB, n int) *Cluster {
	t.Helper()
	url, files := clusterFiles(t, n)
	c := &Cluster{URL: url, t: t}
	for _, file := range files {
		s := &Server{t: t, cfg: embedded.Config{ConfigFile: file}}
		c.servers = append(c.servers, s)
		t.Cleanup(s.Stop)
		s.Restart()
	}
	c.await()
	return c
}

// Start starts server i on its data.
func (c *Cluster) Start(i int) {
	c.t.Helper()
	c.servers[i].Restart()
}

// Stop stops server i; its data stays.
func (c *Cluster) Stop(i int) { c.servers[i].Stop() }

// clusterFiles writes the configurations of n servers and returns their URL.
func clusterFiles(t testing.TB, n int) (url string, files []string) {
	t.Helper()
	var ports []string
	for range 2 * n {
		ports = append(ports, programtest.Address())
	}
	var urls, routes []string
	for i := range n {
		urls = append(urls, "nats://"+ports[i])
		routes = append(routes, "nats://"+ports[n+i])
	}
	for i := range n {
		dir := t.TempDir()
		conf := fmt.Sprintf("server_name: n%d\nlisten: %s\nmax_payload: 16MB\njetstream { store_dir: %q, sync_interval: always }\n"+
			"cluster { name: test, listen: %s, routes: [%s] }\n", i, ports[i], dir, ports[n+i], strings.Join(routes, ", "))
		name := filepath.Join(dir, "nats.conf")
		fatal.If(t, os.WriteFile(name, []byte(conf), 0o600))
		files = append(files, name)
	}
	return strings.Join(urls, ","), files
}

// Leader is the server that leads a stream, -1 if none.
func (c *Cluster) Leader(stream string) int {
	c.t.Helper()
	js, done := c.jetStream()
	defer done()
	s, err := js.Stream(c.t.Context(), stream)
	if err != nil || s.CachedInfo().Cluster == nil {
		return -1
	}
	var i int
	if _, err := fmt.Sscanf(s.CachedInfo().Cluster.Leader, "n%d", &i); err != nil {
		return -1
	}
	return i
}

// await waits until streams with a replica on every server can be created.
func (c *Cluster) await() {
	c.t.Helper()
	js, done := c.jetStream()
	defer done()
	deadline := time.Now().Add(30 * time.Second)
	for {
		_, err := js.CreateStream(c.t.Context(), jetstream.StreamConfig{Name: "READY", Replicas: len(c.servers)})
		if err == nil {
			err = js.DeleteStream(c.t.Context(), "READY")
		}
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("the cluster is not ready: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (c *Cluster) jetStream() (jetstream.JetStream, func()) {
	c.t.Helper()
	nc, err := nats.Connect(c.URL, nats.MaxReconnects(-1))
	if err != nil {
		c.t.Fatalf("connect to %s: %v", c.URL, err)
	}
	js, err := jetstream.New(nc)
	fatal.If(c.t, err)
	return js, nc.Close
}
