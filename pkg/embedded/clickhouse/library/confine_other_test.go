//go:build !linux

package library_test

const envConfine = "CLICKHOUSE_TEST_CONFINE"

func confined(string) {}
