//go:build !linux

package parts

import "syscall"

// DieWithUs cannot be had here.
func DieWithUs() *syscall.SysProcAttr { return nil }
