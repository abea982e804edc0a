package run

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

const eased = "SLUICE_TEST_EASED" // set in the child process of TestTimersAreEased

// TestTimersAreEased: every thread has the slack, in the same process, with the same
// arguments and environment.
func TestTimersAreEased(t *testing.T) {
	if want := os.Getenv(eased); want != "" {
		easeTimers()
		fmt.Printf("process %d, %s %q\n", os.Getpid(), want, os.Args[1:])
		for range 3 {
			slack := make(chan int)
			go func() {
				runtime.LockOSThread() // each on its own new thread
				n, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
				slack <- n
				select {}
			}()
			fmt.Printf("slack %d\n", <-slack)
		}
		os.Exit(0)
	}
	child := exec.Command(os.Args[0], "-test.run=^TestTimersAreEased$")
	child.Env = append(os.Environ(), eased+"=kept")
	out, err := child.CombinedOutput()
	fatal.When(t, err != nil, "%v: %s", err, out)
	want := fmt.Sprintf("process %d, kept [\"-test.run=^TestTimersAreEased$\"]\n%s", child.Process.Pid,
		strings.Repeat(fmt.Sprintf("slack %d\n", timerSlack), 3))
	expect.Not(t, string(out) != want, "got %s, want %s", out, want)
}
