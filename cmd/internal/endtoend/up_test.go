package endtoend

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/pkg/fatal"
)

func TestUpRefusesUnusableOptions(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer taken.Close()
	file := filepath.Join(t.TempDir(), "file")
	fatal.If(t, os.WriteFile(file, nil, 0o600))

	s := newStack(t)
	flags := map[string]string{"--data": s.data, "--http": s.http, "--ops": s.ops, "--nats": s.nats,
		"--clickhouse": s.clickhouse, "--clickhouse-http": s.chHTTP}
	for _, tt := range []struct{ name, flag, value, want string }{
		{"the HTTP port is taken", "--http", taken.Addr().String(), "--http"},
		{"the ops port is taken", "--ops", taken.Addr().String(), "--ops"},
		{"the NATS port is taken", "--nats", taken.Addr().String(), "--nats"},
		{"the ClickHouse port is taken", "--clickhouse", taken.Addr().String(), "--clickhouse"},
		{"the ClickHouse HTTP port is taken", "--clickhouse-http", taken.Addr().String(), "--clickhouse-http"},
		{"the data folder is a file", "--data", file, file},
		{"the engine library is missing", "--clickhouse-library", "/nowhere/libchdb.so", "/nowhere/libchdb.so"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := []string{"up"}
			for flag, value := range flags {
				if flag != tt.flag {
					args = append(args, flag, value)
				}
			}
			began := time.Now()
			code, out := run(t, "sluice", append(args, tt.flag, tt.value)...)
			if code != 1 || !strings.Contains(out, tt.want) {
				t.Errorf("exit %d after %v, want 1 naming %q:\n%s", code, time.Since(began), tt.want, out)
			}
			if lines := strings.Count(strings.TrimSpace(out), "\n") + 1; lines != 1 {
				t.Errorf("%d lines, want one:\n%s", lines, out)
			}
		})
	}
}
