package trial

import "syscall"

// dieWithUs makes a part end when this process is killed.
func dieWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
