package run

import (
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// timerSlack is how late the kernel may wake a thread from a timed sleep, so
// that it need not do so one by one. Linux has 50 µs.
const timerSlack = 1_000_000 // ns

// easeTimers lets timed sleeps of the process end up to timerSlack late. Go's
// runtime watches over threads in system calls by sleeping for 20 µs at a time,
// and a server that syncs to disk thousands of times a second is mostly in such
// calls: these wake-ups take a quarter of its processor time, with the 50 µs that
// Linux gives (docs/decisions/0013-go-runtime.md).
//
// The slack is of a thread, and handed on to those that it starts. So the
// program begins once more, in the same process, with the slack on its first
// thread. Where that is not possible all works as before, at that cost.
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
