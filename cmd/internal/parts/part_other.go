//go:build !linux

package parts

import "syscall"

// DieWithUs can not be had here.
func DieWithUs() *syscall.SysProcAttr { return nil }
