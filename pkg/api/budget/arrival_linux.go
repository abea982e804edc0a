package budget

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bytesWait tells whether a connection has bytes that were not read yet.
func bytesWait(conn net.Conn) bool {
	var n int
	control(conn, func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, unix.TIOCINQ)
		return err
	})
	return n > 0
}

// sinceBytesCame is how long ago the last bytes of a connection came, as its
// kernel saw it; 0 when that is not known.
func sinceBytesCame(conn net.Conn) time.Duration {
	var ago time.Duration
	control(conn, func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			ago = time.Duration(info.Last_data_recv) * time.Millisecond
		}
		return err
	})
	return ago
}

// control asks the kernel about a connection. A connection that it does not know
// any more has no answer, and needs none.
func control(conn net.Conn, ask func(fd int) error) {
	tcp, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = ask(int(fd)) })
}
