//go:build !linux

package trial

import "syscall"

func dieWithUs() *syscall.SysProcAttr { return nil }
