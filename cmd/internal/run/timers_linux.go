package run

import (
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// timerSlack is the kernel's tolerance for timed sleeps, which lets it wake threads
// together. The default of Linux is 50 µs.
const timerSlack = 1_000_000 // ns

// easeTimers sets timerSlack. Go's runtime monitors threads in system calls by sleeping
// 20 µs at a time. A server that syncs thousands of times a second is mostly in such
// calls. With the default slack the wake-ups take a quarter of its CPU time
// (docs/decisions/0013-go-runtime.md).
//
// Threads inherit the slack from the thread that starts them. So the program re-executes
// itself, in the same process, with the slack on its first thread. If that fails, the
// program works with the default slack.
func easeTimers() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil || slack >= timerSlack {
		return
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, timerSlack, 0, 0, 0); err == nil {
		_ = syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	}
}
