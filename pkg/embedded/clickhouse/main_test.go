package clickhouse_test

import (
	"testing"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
)

func TestMain(m *testing.M) { clickhousetest.Main(m) }
