package programtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// taken are the sockets that reserve addresses for this process.
var taken struct {
	sync.Mutex
	sockets []net.PacketConn
}

// Address returns a loopback address without a listener, whose port the kernel assigns to no
// connection. It is reserved for this process by a UDP socket of the same number, also
// while no server listens on it.
func Address() string {
	for {
		addr := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000))
		socket, err := net.ListenPacket("udp", addr)
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			socket.Close()
			continue
		}
		l.Close()
		taken.Lock()
		taken.sockets = append(taken.sockets, socket)
		taken.Unlock()
		return addr
	}
}
