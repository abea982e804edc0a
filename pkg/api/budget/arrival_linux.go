package budget

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// arrival asks the kernel whether a connection has unread bytes, and how long ago its last
// bytes arrived. A closed connection has neither.
func arrival(conn net.Conn) (unread bool, ago time.Duration) {
	tcp, ok := conn.(syscall.Conn)
	if !ok {
		return false, 0
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false, 0
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			ago = time.Duration(info.Last_data_recv) * time.Millisecond
		}
		n, _ := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		unread = n > 0
	})
	return unread, ago
}
