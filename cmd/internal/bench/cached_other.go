//go:build !linux

package main

// dropCached does nothing: only ClickHouse's own caches are cold.
func dropCached(string) {}
