package natstest

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	embedded "sluice/pkg/embedded/nats"
)

// Cluster is NATS servers that replicate to each other, configured by plain
// files as outside of a test. They stop with the test.
type Cluster struct {
	URL     string // of all of them
	t       testing.TB
	configs []embedded.Config
	servers []*embedded.Server // nil: stopped
}

// StartCluster starts n servers for the time of the test, and waits until
// JetStream has a leader.
func StartCluster(t testing.TB, n int) *Cluster {
	t.Helper()
	c := &Cluster{t: t, servers: make([]*embedded.Server, n)}
	url, files := clusterFiles(t, n)
	c.URL = url
	for _, file := range files {
		c.configs = append(c.configs, embedded.Config{ConfigFile: file})
	}
	for i := range n {
		c.Start(i)
	}
	t.Cleanup(func() {
		for i := range n {
			c.Stop(i)
		}
	})
	c.await()
	return c
}

// clusterFiles writes the configurations of n servers, and returns the URL of
// all of them.
func clusterFiles(t testing.TB, n int) (url string, files []string) {
	t.Helper()
	ports := freePorts(t, 2*n)
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
		if err := os.WriteFile(name, []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, name)
	}
	return strings.Join(urls, ","), files
}

// freePorts finds addresses on which nothing listens.
func freePorts(t testing.TB, n int) []string {
	t.Helper()
	var addresses []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // all are kept until all are found
		addresses = append(addresses, l.Addr().String())
	}
	return addresses
}

// Start starts server i on its data.
func (c *Cluster) Start(i int) {
	c.t.Helper()
	s, err := embedded.Start(c.configs[i], slog.New(slog.DiscardHandler))
	if err != nil {
		c.t.Fatalf("start NATS server %d: %v", i, err)
	}
	c.servers[i] = s
}

// Stop stops server i; its data stays.
func (c *Cluster) Stop(i int) {
	if c.servers[i] != nil {
		c.servers[i].Shutdown()
		c.servers[i] = nil
	}
}

// Leader is the server that leads a stream, -1 when there is none.
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

// await waits until the servers can make streams of as many replicas as there
// are servers.
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
	if err != nil {
		c.t.Fatal(err)
	}
	return js, nc.Close
}
