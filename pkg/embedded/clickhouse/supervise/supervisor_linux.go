package supervise

import "syscall"

// childAttributes puts the child into a group of its own, so that Ctrl-C reaches
// the parent alone, which stops the engine last; and has the kernel kill it when
// the parent is gone.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
