//go:build !linux

package clickhouse_test

const envConfine = "CLICKHOUSE_TEST_CONFINE"

func confined(string) {}
