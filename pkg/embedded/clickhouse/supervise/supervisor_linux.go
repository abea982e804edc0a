package supervise

import "syscall"

// childAttributes puts the child into its own process group, so that Ctrl-C reaches only the
// parent, which stops the engine last; and lets the kernel kill it when the parent ends.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
