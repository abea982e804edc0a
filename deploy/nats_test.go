package deploy_test

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"

	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/stream"
)

// natsUsers are the users of sluice up with their permissions.
var natsUsers = []struct {
	name, variable string
	may            stream.Permissions
}{
	{"api", "NATS_API_PASSWORD", stream.APIPermissions()},
	{"ingester", "NATS_INGESTER_PASSWORD", stream.IngesterPermissions()},
	{"operator", "NATS_OPERATOR_PASSWORD", stream.OperatorPermissions()},
	{"console", "NATS_CONSOLE_PASSWORD", stream.ConsolePermissions()},
}

// passwordOf is a user's password in tests.
func passwordOf(user string) string { return "n1e5-" + user }

// natsPasswords sets the environment variables of nats.conf to the given passwords, or else
// those of the tests.
func natsPasswords(t *testing.T, given map[string]string) {
	t.Helper()
	for _, user := range natsUsers {
		password, ok := given[user.variable]
		if !ok {
			password = passwordOf(user.name)
		}
		t.Setenv(user.variable, password)
	}
}

func TestNATSSyncsBeforeItAcknowledges(t *testing.T) {
	natsPasswords(t, nil)
	opts, err := server.ProcessConfigFile("nats.conf")
	fatal.If(t, err)
	keepsWhatItAcknowledges(t, opts)
	expect.Not(t, opts.StoreDir != "", "the folder %s is named here and by the caller", opts.StoreDir)
}

// keepsWhatItAcknowledges compares a configuration with the requirements of Sluice, and its
// users with those of sluice up.
func keepsWhatItAcknowledges(t *testing.T, opts *server.Options) {
	t.Helper()
	if !opts.JetStream || !opts.SyncAlways {
		t.Errorf("JetStream %t, sync always %t; want both", opts.JetStream, opts.SyncAlways)
	}
	if opts.MaxPayload != 16<<20 || opts.MaxPending != 256<<20 || opts.JetStreamMaxStore < 8<<30 {
		t.Errorf("messages of %d bytes, %d pending, store of %d", opts.MaxPayload, opts.MaxPending, opts.JetStreamMaxStore)
	}
	for _, user := range natsUsers {
		i := slices.IndexFunc(opts.Users, func(u *server.User) bool { return u.Username == user.name })
		if i < 0 {
			t.Errorf("user %s is missing", user.name)
			continue
		}
		u := opts.Users[i]
		got := stream.Permissions{Publish: u.Permissions.Publish.Allow, Subscribe: u.Permissions.Subscribe.Allow}
		if diff := cmp.Diff(user.may, got); diff != "" || u.Password != passwordOf(user.name) {
			t.Errorf("%s has other permissions than in sluice up, or another password (-want +got):\n%s", user.name, diff)
		}
	}
	if len(opts.Users) != len(natsUsers) || opts.Username != "" || opts.NoAuthUser != "" {
		t.Errorf("%d users, %q and %q besides; want %d", len(opts.Users), opts.Username, opts.NoAuthUser, len(natsUsers))
	}
}

// TestNATSOfAClusterAsksForCertificates parses nats/cluster.conf as one of three servers.
// cmd/internal/endtoend runs them.
func TestNATSOfAClusterAsksForCertificates(t *testing.T) {
	dir := t.TempDir()
	clients, servers := natstest.NewCA(t, "clients"), natstest.NewCA(t, "servers")
	own, route := clients.Server("n1"), servers.Server("n1")
	for name, value := range map[string]string{
		"NATS_NAME": "n1", "NATS_ZONE": "zone:a", "NATS_LISTEN": "0.0.0.0:4222", "NATS_MONITOR": "127.0.0.1:8222",
		"NATS_STORE": filepath.Join(dir, "store"), "NATS_MAX_STORE": "100GB", "NATS_ROUTE_LISTEN": "0.0.0.0:6222",
		"NATS_ROUTES": "[tls://n1:6222, tls://n2:6222, tls://n3:6222]",
		"NATS_CA":     natstest.Write(t, dir, "ca.pem", clients.PEM()), "NATS_CERT": natstest.Write(t, dir, "cert.pem", own.Cert), "NATS_KEY": natstest.Write(t, dir, "key.pem", own.Key),
		"NATS_ROUTE_CA":   natstest.Write(t, dir, "route-ca.pem", servers.PEM()),
		"NATS_ROUTE_CERT": natstest.Write(t, dir, "route-cert.pem", route.Cert), "NATS_ROUTE_KEY": natstest.Write(t, dir, "route-key.pem", route.Key),
	} {
		t.Setenv(name, value)
	}
	var passwords string
	for _, user := range natsUsers {
		passwords += fmt.Sprintf("%s: %q\n", user.variable, passwordOf(user.name))
	}
	natstest.Write(t, dir, "passwords.conf", []byte(passwords))
	conf := filepath.Join(dir, "cluster.conf")
	fatal.If(t, os.Symlink(absolute(t, "nats/cluster.conf"), conf))
	opts, err := server.ProcessConfigFile(conf)
	fatal.If(t, err)
	keepsWhatItAcknowledges(t, opts)
	for what, c := range map[string]*tls.Config{"clients": opts.TLSConfig, "servers": opts.Cluster.TLSConfig} {
		if c == nil || c.ClientAuth != tls.RequireAndVerifyClientCert || c.MinVersion != tls.VersionTLS13 || c.InsecureSkipVerify {
			t.Errorf("%s are not asked for certificates: %+v", what, c)
		}
	}
	expect.Not(t, opts.TLSConfig.ClientCAs.Equal(opts.Cluster.TLSConfig.ClientCAs), "the CA of clients signs certificates of servers too")
	if !opts.Cluster.NoAdvertise || len(opts.Routes) != 3 || opts.Cluster.Host != "0.0.0.0" || opts.Cluster.Port != 6222 || opts.Cluster.Name == "" {
		t.Errorf("the cluster is %+v with routes %v", opts.Cluster, opts.Routes)
	}
	if opts.ServerName != "n1" || opts.Port != 4222 || opts.HTTPHost != "127.0.0.1" || opts.HTTPPort != 8222 || opts.StoreDir != filepath.Join(dir, "store") || opts.JetStreamMaxStore != 100<<30 {
		t.Errorf("the server is %s at port %d, watched at %s:%d, with %d bytes in %s", opts.ServerName, opts.Port, opts.HTTPHost, opts.HTTPPort, opts.JetStreamMaxStore, opts.StoreDir)
	}
	if diff := cmp.Diff([]string{"zone:a"}, []string(opts.Tags)); diff != "" || opts.JetStreamUniqueTag != "zone:" {
		t.Errorf("replicas are spread by %q, with the tags (-want +got):\n%s", opts.JetStreamUniqueTag, diff)
	}
}

func absolute(t *testing.T, file string) string {
	t.Helper()
	path, err := filepath.Abs(file)
	fatal.If(t, err)
	return path
}

// startNATS starts a server with this configuration, on free ports.
func startNATS(t *testing.T) *embedded.Server {
	t.Helper()
	config := filepath.Join(t.TempDir(), "nats.conf")
	content := append(read(t, "nats.conf"), "\nlisten: \"127.0.0.1:-1\"\nhttp: \"127.0.0.1:-1\"\n"...)
	fatal.If(t, os.WriteFile(config, content, 0o600))
	srv, err := embedded.Start(embedded.Config{Data: t.TempDir(), ConfigFile: config}, slog.New(slog.DiscardHandler))
	fatal.If(t, err)
	t.Cleanup(srv.Shutdown)
	return srv
}
