package run

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// addressFile is the file of a data folder with the addresses of its sluice up.
const addressFile = "addresses"

var ownLoopback = strings.NewReplacer("0.0.0.0:", "127.0.0.1:", "[::]:", "127.0.0.1:", "//:", "//127.0.0.1:")

// WriteAddresses keeps the addresses of a sluice up, as flag=value, for commands with its --data.
func WriteAddresses(folder string, flags ...string) error {
	return os.WriteFile(filepath.Join(folder, addressFile), []byte(ownLoopback.Replace(strings.Join(flags, "\n"))+"\n"), 0o600)
}

// addresses gives a command that gets no address that of the sluice up of its --data.
var addresses kong.ResolverFunc = func(c *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	flags := c.Flags()
	data := slices.IndexFunc(flags, func(f *kong.Flag) bool { return f.Name == "data" })
	if data < 0 || slices.Contains([]string{"", "up", "clickhouse", "nats"}, c.Command()) || slices.ContainsFunc(flag.Envs, func(name string) bool { return os.Getenv(name) != "" }) {
		return nil, nil
	}
	folder, _ := c.FlagValue(flags[data]).(string)
	text, err := os.ReadFile(filepath.Join(folder, addressFile))
	if err != nil {
		return nil, nil // not the folder of a sluice up, or not readable: the default stays
	}
	for line := range strings.Lines(string(text)) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), "="); found && name == flag.Name {
			return value, nil
		}
	}
	return nil, nil
}
