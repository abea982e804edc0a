package server_test

import (
	"testing"
	"time"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/fatal"
)

func TestMain(m *testing.M) { clickhousetest.Main(m) }

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		fatal.When(t, time.Now().After(deadline), "never: %s", what)
	}
}
