//go:build !linux

package supervise

import "syscall"

// childAttributes puts the child into a group of its own, so that Ctrl-C reaches
// the parent alone, which stops the engine last. That the parent is gone, the
// child learns from its lifeline.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
