//go:build !linux

package programtest

import "os/exec"

// dieWithUs does nothing: only Linux supports it.
func dieWithUs(*exec.Cmd) {}
