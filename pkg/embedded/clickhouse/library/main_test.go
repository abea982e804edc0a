package library_test

import (
	"os"
	"testing"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(envConfine); config != "" {
		confined(config)
		return
	}
	clickhousetest.Main(m)
}
