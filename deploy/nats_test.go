package deploy_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"

	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/stream"
)

// natsUsers are those of sluice up, with what they may do there.
var natsUsers = []struct {
	name, variable string
	may            stream.Permissions
}{
	{"api", "NATS_API_PASSWORD", stream.APIPermissions()},
	{"ingester", "NATS_INGESTER_PASSWORD", stream.IngesterPermissions()},
	{"operator", "NATS_OPERATOR_PASSWORD", stream.OperatorPermissions()},
	{"console", "NATS_CONSOLE_PASSWORD", stream.ConsolePermissions()},
}

// passwordOf is the password of a user in these tests.
func passwordOf(user string) string { return "n1e5-" + user }

// natsPasswords puts the passwords that nats.conf names into the environment:
// those given, or those of these tests.
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
	if err != nil {
		t.Fatal(err)
	}
	if !opts.JetStream || !opts.SyncAlways {
		t.Errorf("JetStream %t, sync always %t; want both", opts.JetStream, opts.SyncAlways)
	}
	if opts.MaxPayload != 16<<20 || opts.MaxPending != 256<<20 || opts.JetStreamMaxStore < 8<<30 {
		t.Errorf("messages of %d bytes, %d pending, store of %d", opts.MaxPayload, opts.MaxPending, opts.JetStreamMaxStore)
	}
	for _, user := range natsUsers {
		i := slices.IndexFunc(opts.Users, func(u *server.User) bool { return u.Username == user.name })
		if i < 0 {
			t.Errorf("there is no user %s", user.name)
			continue
		}
		u := opts.Users[i]
		got := stream.Permissions{Publish: u.Permissions.Publish.Allow, Subscribe: u.Permissions.Subscribe.Allow}
		if diff := cmp.Diff(user.may, got); diff != "" || u.Password != passwordOf(user.name) {
			t.Errorf("%s may do other things than in sluice up, or has another password (-want +got):\n%s", user.name, diff)
		}
	}
	if len(opts.Users) != len(natsUsers) || opts.Username != "" || opts.NoAuthUser != "" {
		t.Errorf("%d users, %q and %q besides; want %d", len(opts.Users), opts.Username, opts.NoAuthUser, len(natsUsers))
	}
	if opts.StoreDir != "" {
		t.Errorf("the folder %s is named here and by whoever starts the server", opts.StoreDir)
	}
}

// startNATS starts a server with this configuration, on ports of its own.
func startNATS(t *testing.T) *embedded.Server {
	t.Helper()
	config := filepath.Join(t.TempDir(), "nats.conf")
	content := append(read(t, "nats.conf"), "\nlisten: \"127.0.0.1:-1\"\nhttp: \"127.0.0.1:-1\"\n"...)
	if err := os.WriteFile(config, content, 0o600); err != nil {
		t.Fatal(err)
	}
	srv, err := embedded.Start(embedded.Config{Data: t.TempDir(), ConfigFile: config}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	return srv
}
