package endtoend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/dial"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/load"
	"sluice/pkg/programtest"
)

// natsUsers are the users of deploy/nats/cluster.conf.
var natsUsers = []string{"api", "ingester", "console", "operator"}

// cluster is three nats-server processes with deploy/nats/cluster.conf, and the files of
// their clients.
type cluster struct {
	t       *testing.T
	dir     string
	servers []*natsServer
}

// natsServer is one server, in its own folder.
type natsServer struct {
	*process
	t       *testing.T
	name    string
	dir     string
	address string // for clients
	route   string // for servers
	env     []string
	reloads int
}

// newCluster prepares three servers, without starting them. One CA signs certificates for
// clients, another for routes.
func newCluster(t *testing.T, clients, routes *natstest.CA) *cluster {
	t.Helper()
	conf, err := filepath.Abs("../../../deploy/nats/cluster.conf")
	fatal.If(t, err)
	c := &cluster{t: t, dir: t.TempDir()}
	var all []string
	for i := range 3 {
		s := &natsServer{t: t, name: fmt.Sprintf("n%d", i+1), dir: filepath.Join(c.dir, fmt.Sprintf("n%d", i+1)), address: programtest.Address(), route: programtest.Address()}
		fatal.If(t, os.Mkdir(s.dir, 0o700))
		// A link, because the server looks for included files beside this name.
		fatal.If(t, os.Symlink(conf, filepath.Join(s.dir, "cluster.conf")))
		c.servers, all = append(c.servers, s), append(all, "tls://"+s.route)
	}
	for i, s := range c.servers {
		s.env = []string{
			"NATS_NAME=" + s.name, "NATS_ZONE=zone:" + string(rune('a'+i)), "NATS_LISTEN=" + s.address, "NATS_MONITOR=" + programtest.Address(),
			"NATS_STORE=" + filepath.Join(s.dir, "store"), "NATS_MAX_STORE=20GB", "NATS_ROUTE_LISTEN=" + s.route, "NATS_ROUTES=[" + strings.Join(all, ", ") + "]",
			"NATS_CA=" + filepath.Join(s.dir, "ca.pem"), "NATS_CERT=" + filepath.Join(s.dir, "cert.pem"), "NATS_KEY=" + filepath.Join(s.dir, "key.pem"),
			"NATS_ROUTE_CA=" + filepath.Join(s.dir, "route-ca.pem"), "NATS_ROUTE_CERT=" + filepath.Join(s.dir, "route-cert.pem"), "NATS_ROUTE_KEY=" + filepath.Join(s.dir, "route-key.pem"),
		}
	}
	c.trust([]*natstest.CA{clients}, []*natstest.CA{routes})
	c.sign(clients, routes)
	for _, s := range c.servers {
		s.admit("first")
	}
	c.passwords("first")
	return c
}

// trust writes the trusted CAs of client and route certificates.
func (c *cluster) trust(clients, routes []*natstest.CA) {
	bundle := func(all []*natstest.CA) (pem []byte) {
		for _, ca := range all {
			pem = append(pem, ca.PEM()...)
		}
		return pem
	}
	for _, s := range c.servers {
		natstest.Write(c.t, s.dir, "ca.pem", bundle(clients))
		natstest.Write(c.t, s.dir, "route-ca.pem", bundle(routes))
	}
	natstest.Write(c.t, c.dir, "ca.pem", bundle(clients))
}

// sign writes certificates of servers and clients.
func (c *cluster) sign(clients, routes *natstest.CA) {
	write := func(dir, prefix string, signed natstest.Certificate) {
		natstest.Write(c.t, dir, prefix+"cert.pem", signed.Cert)
		natstest.Write(c.t, dir, prefix+"key.pem", signed.Key)
	}
	for _, s := range c.servers {
		write(s.dir, "", clients.Server(s.name))
		write(s.dir, "route-", routes.Server(s.name))
	}
	for _, user := range natsUsers {
		write(c.dir, user+"-", clients.Client(user))
	}
}

// admit writes the passwords that the server accepts after its next reload.
func (s *natsServer) admit(generation string) {
	var passwords strings.Builder
	for _, user := range natsUsers {
		fmt.Fprintf(&passwords, "NATS_%s_PASSWORD: %q\n", strings.ToUpper(user), passwordOf(user, generation))
	}
	natstest.Write(s.t, s.dir, "passwords.conf", []byte(passwords.String()))
}

// passwords writes the passwords of the programs.
func (c *cluster) passwords(generation string) {
	for _, user := range natsUsers {
		natstest.Write(c.t, c.dir, user+"-password", []byte(passwordOf(user, generation)+"\n"))
	}
}

func passwordOf(user, generation string) string { return user + "-" + generation + "-71c9" }

func (s *natsServer) start() {
	s.t.Helper()
	s.process, s.reloads = startWith(s.t, s.env, "nats-server", "--config", filepath.Join(s.dir, "cluster.conf")), 0
}

func (c *cluster) reload() {
	c.t.Helper()
	for _, s := range c.servers {
		s.reload()
	}
}

func (s *natsServer) reload() {
	s.t.Helper()
	s.signal(syscall.SIGHUP)
	s.reloads++
	eventually(s.t, 20*time.Second, func() error {
		if n := strings.Count(s.text(), "Reloaded server configuration"); n < s.reloads {
			return fmt.Errorf("%s has read its files %d times, want %d", s.name, n, s.reloads)
		}
		return nil
	})
}

// url returns the client addresses of all servers.
func (c *cluster) url() string {
	var all []string
	for _, s := range c.servers {
		all = append(all, "tls://"+s.address)
	}
	return strings.Join(all, ",")
}

// as returns the options of a program that connects as a user.
func (c *cluster) as(user string) []string {
	file := func(name string) string { return filepath.Join(c.dir, name) }
	return []string{"--nats", c.url(), "--nats-user", user, "--nats-password-file", file(user + "-password"),
		"--nats-ca", file("ca.pem"), "--nats-cert", file(user + "-cert.pem"), "--nats-key", file(user + "-key.pem")}
}

// dial connects as a user, with the options of the programs.
func (c *cluster) dial(user string) (nc *nats.Conn, refused chan error) {
	c.t.Helper()
	file := func(name string) string { return filepath.Join(c.dir, name) }
	to := dial.Config{URL: c.url(), Name: user, User: user, PasswordFile: file(user + "-password"), CA: file("ca.pem"), Cert: file(user + "-cert.pem"), Key: file(user + "-key.pem")}
	refused = make(chan error, 64)
	nc, err := nats.Connect(to.URL, append(to.Options(slog.New(slog.DiscardHandler), dial.NewMetrics(prometheus.NewRegistry())),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))...)
	fatal.If(c.t, err)
	c.t.Cleanup(nc.Close)
	return nc, refused
}

// leader returns the server that leads a stream.
func (c *cluster) leader(nc *nats.Conn, stream string) (leader *natsServer) {
	c.t.Helper()
	js, err := jetstream.New(nc)
	fatal.If(c.t, err)
	eventually(c.t, 20*time.Second, func() error {
		lane, err := js.Stream(c.t.Context(), stream)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(c.servers, func(s *natsServer) bool { return s.name == lane.CachedInfo().Cluster.Leader })
		if i < 0 {
			return errors.New(stream + " has no leader")
		}
		leader = c.servers[i]
		return nil
	})
	return leader
}

// held waits until all three servers have the whole stream.
func (c *cluster) held(nc *nats.Conn, stream string) {
	c.t.Helper()
	js, err := jetstream.New(nc)
	fatal.If(c.t, err)
	eventually(c.t, 30*time.Second, func() error {
		lane, err := js.Stream(c.t.Context(), stream)
		if err != nil {
			return err
		}
		current := 1
		for _, peer := range lane.CachedInfo().Cluster.Replicas {
			if peer.Current {
				current++
			}
		}
		if current != 3 {
			return fmt.Errorf("%d servers have all of %s, want 3", current, stream)
		}
		return nil
	})
}

// posting posts records until stop, and counts acknowledged ones.
type posting struct {
	acked atomic.Int64
	stop  func() int64 // waits until all are acknowledged
}

// post starts to post to an api with a token.
func post(t *testing.T, api, token string) *posting {
	p := &posting{}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for seed := uint64(1); ctx.Err() == nil; seed++ {
			// Rejected requests are retried.
			report, err := load.Run(context.Background(), load.Config{
				URL: "http://" + api, Token: token, Records: 200, Rate: 500, Batch: 10, Seed: seed, Timeout: 5 * time.Second, GiveUp: 2 * time.Minute,
			})
			if err != nil {
				t.Errorf("post to %s: %v", api, err)
				return
			}
			p.acked.Add(report.Acked.Records)
		}
	}()
	p.stop = func() int64 {
		cancel()
		<-ended
		return p.acked.Load()
	}
	t.Cleanup(func() { p.stop() })
	return p
}

// flows waits until each acknowledges records that it posts from now on.
func flows(t *testing.T, all ...*posting) {
	t.Helper()
	var before []int64
	for _, p := range all {
		before = append(before, p.acked.Load())
	}
	for i, p := range all {
		eventually(t, 60*time.Second, func() error {
			if now := p.acked.Load(); now < before[i]+400 { // a run has begun since
				return fmt.Errorf("%d records are acknowledged, want 400 more than %d", now, before[i])
			}
			return nil
		})
	}
}

// TestNATSCluster runs three official nats-servers with the deployed configuration, and
// restores a backup of a single server. Two apis and two ingesters connect as their
// users, with certificates. Under load it scales streams to three replicas, replaces
// certificates and passwords, and kills a lane's leader. Every record is stored once, and
// actions without a grant are rejected.
func TestNATSCluster(t *testing.T) {
	t.Parallel()
	fatal.If(t, programtest.BuildNATS(t.Context(), bin))
	oldClients, oldRoutes := natstest.NewCA(t, "clients, old"), natstest.NewCA(t, "servers, old")
	c := newCluster(t, oldClients, oldRoutes)
	for _, s := range c.servers {
		s.start()
	}
	copied := filepath.Join(t.TempDir(), "backup")
	s := alone(t, copied)
	tables := []string{"--clickhouse", "clickhouse://default@" + s.clickhouse + "/flow"}
	eventually(t, time.Minute, func() error { // new servers must first agree on a leader
		code, out := run(t, "sluice", append(append([]string{"restore", "--from", copied, "--stream-replicas", "1"}, tables...), c.as("operator")...)...)
		if code != 0 {
			return errors.New(out)
		}
		return nil
	})
	apis := s.startOn(c, "engine-a", "engine-b")

	posted := post(t, apis[0], s.tokens[0])
	flows(t, posted)
	lanes := func(want int, args ...string) string {
		t.Helper()
		return s.sluice(want, append(append([]string{"lanes"}, args...), c.as("operator")...)...)
	}
	asOperator, _ := c.dial("operator")
	t.Run("streams grow from one replica to three", func(t *testing.T) {
		lanes(0, "make", "--stream-replicas", "3")
		lanes(0, "add")
		for _, name := range []string{"FLOW_0", "FLOW_1", "FLOW_DEAD", "FLOW_NOTES", "KV_flow_lanes", "KV_flow_leases", "KV_flow_sources", "KV_flow_state"} {
			c.held(asOperator, name)
		}
	})
	more := post(t, apis[1], s.tokens[1]) // over both lanes
	flow := func() { flows(t, posted, more) }
	flow()

	newClients, newRoutes := natstest.NewCA(t, "clients, new"), natstest.NewCA(t, "servers, new")
	before := c.load("api-")
	t.Run("certificates are replaced", func(t *testing.T) {
		c.trust([]*natstest.CA{oldClients, newClients}, []*natstest.CA{oldRoutes, newRoutes})
		c.reload()
		c.sign(newClients, newRoutes)
		c.reload()
		c.trust([]*natstest.CA{newClients}, []*natstest.CA{newRoutes})
		c.reload()
		c.refuses(before, "a certificate of the CA that was replaced")
	})
	t.Run("passwords are replaced", func(t *testing.T) {
		c.servers[0].admit("second")
		c.servers[0].reload() // its clients reconnect to the others
		c.passwords("second")
		for _, s := range c.servers[1:] {
			s.admit("second")
			s.reload()
		}
		flow()
	})
	t.Run("the leader of a lane is killed", func(t *testing.T) {
		leader := c.leader(asOperator, "FLOW_0")
		leader.kill()
		flow()
		leader.start() // accepted by the new certificates
		c.held(asOperator, "FLOW_0")
	})
	t.Run("an unknown client is rejected", func(t *testing.T) {
		known := c.load("api-")
		c.refuses(tls.Certificate{}, "no certificate")
		stranger := natstest.NewCA(t, "stranger").Client("api")
		pair, err := tls.X509KeyPair(stranger.Cert, stranger.Key)
		fatal.If(t, err)
		c.refuses(pair, "a certificate of a stranger")
		if err := c.greets(c.servers[0].route, known); err == nil {
			t.Error("a client's certificate is accepted from a server")
		}
		if err := c.greets(c.servers[0].route, c.load("n2/route-")); err != nil {
			t.Errorf("a server's certificate is rejected: %v", err)
		}
		for _, password := range []string{passwordOf("api", "first"), passwordOf("ingester", "second"), ""} {
			nc, err := nats.Connect(c.url(), nats.UserInfo("api", password), nats.RootCAs(filepath.Join(c.dir, "ca.pem")),
				nats.ClientCert(filepath.Join(c.dir, "api-cert.pem"), filepath.Join(c.dir, "api-key.pem")))
			expect.Not(t, !errors.Is(err, nats.ErrAuthorization), "%q as the password of api: %v", password, err)
			if err == nil {
				nc.Close()
			}
		}
	})

	total := posted.stop() + more.stop() + recordsAlone
	t.Logf("%d records are acknowledged", total)
	s.eventuallyQuery(60*time.Second, "SELECT count(), uniqExact(source, id), (SELECT sum(records) FROM flow.counts_1m) FROM flow.records", fmt.Sprintf("%d\t%[1]d\t%[1]d", total))
	if out, _ := s.printed(0, append([]string{"dead", "list", "--json"}, c.as("operator")...)...); out != "" {
		t.Errorf("dead letters:\n%s", out)
	}
	s.sluice(0, append(append([]string{"verify"}, tables...), c.as("operator")...)...)
}

// recordsAlone is the number of records in the backup.
const recordsAlone = 400

// alone backs up an installation with a single NATS server, and returns an empty
// ClickHouse for the restore.
func alone(t *testing.T, copied string) *stack {
	t.Helper()
	s := newStack(t)
	_, engine, api, ingester := s.apart()
	s.load("--records", fmt.Sprint(recordsAlone))
	s.stored(recordsAlone)
	for _, p := range []*process{api, ingester} {
		if code := p.stop(); code != 0 {
			t.Fatalf("%s stopped with exit %d", p.name, code)
		}
	}
	s.sluice(0, append([]string{"backup", "--to", copied}, s.servers()...)...)
	engine.stop()
	s.empty = true
	fatal.If(t, os.RemoveAll(filepath.Join(s.data, "clickhouse")))
	s.startEngine()
	s.eventuallyQuery(30*time.Second, "SELECT 1", "1")
	return s
}

// startOn starts two apis and two ingesters on a cluster, and waits until they are ready.
// It returns the apis' addresses.
func (s *stack) startOn(c *cluster, sources ...string) (apis []string) {
	s.t.Helper()
	file, tokens := s.tokensOf(sources...)
	s.tokens = tokens
	key := filepath.Join(s.t.TempDir(), "key")
	var ops []string
	var all []*process
	for i := range 4 {
		at := programtest.Address()
		ops = append(ops, at)
		if i < 2 {
			apis = append(apis, programtest.Address())
			all = append(all, start(s.t, "api", append([]string{"--http", apis[i], "--ops", at, "--tokens", file, "--fingerprint-key", key}, c.as("api")...)...))
			continue
		}
		all = append(all, start(s.t, "ingester", append([]string{"--ops", at, "--clickhouse", "clickhouse://default@" + s.clickhouse + "/flow"}, c.as("ingester")...)...))
	}
	for i, p := range all {
		s.waitReady(p, ops[i])
	}
	return apis
}

// load reads the current certificate with this file prefix.
func (c *cluster) load(prefix string) tls.Certificate {
	c.t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(c.dir, prefix+"cert.pem"), filepath.Join(c.dir, prefix+"key.pem"))
	fatal.If(c.t, err)
	return pair
}

// refuses fails unless every server rejects a connection with this certificate.
func (c *cluster) refuses(own tls.Certificate, what string) {
	c.t.Helper()
	trusted := x509.NewCertPool()
	pem, err := os.ReadFile(filepath.Join(c.dir, "ca.pem"))
	if err != nil || !trusted.AppendCertsFromPEM(pem) {
		c.t.Fatal(err)
	}
	for _, s := range c.servers {
		config := &tls.Config{RootCAs: trusted}
		if own.Certificate != nil {
			config.Certificates = []tls.Certificate{own}
		}
		nc, err := nats.Connect("tls://"+s.address, nats.Secure(config), nats.UserInfo("api", passwordOf("api", "second")))
		if err == nil {
			nc.Close()
			c.t.Errorf("%s accepts %s", s.name, what)
		} else if text := err.Error(); !strings.Contains(text, "tls") && !strings.Contains(text, "TLS") {
			c.t.Errorf("%s rejects %s for another reason: %v", s.name, what, err)
		}
	}
}

// greets connects as a server does, and returns the error that ends the connection.
func (c *cluster) greets(address string, own tls.Certificate) error {
	c.t.Helper()
	trusted := x509.NewCertPool()
	pem, err := os.ReadFile(filepath.Join(c.servers[0].dir, "route-ca.pem"))
	if err != nil || !trusted.AppendCertsFromPEM(pem) {
		c.t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: trusted, Certificates: []tls.Certificate{own}})
	if err != nil {
		return err
	}
	defer conn.Close()
	fatal.If(c.t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = conn.Read(make([]byte, 1))
	return err
}
