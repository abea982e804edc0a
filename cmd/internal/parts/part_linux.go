package parts

import "syscall"

// DieWithUs makes a part end when this process is killed.
func DieWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
