package programtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// taken are the sockets that keep addresses for this process.
var taken struct {
	sync.Mutex
	sockets []net.PacketConn
}

// Address is a loopback address on which nothing listens, of a port that the system
// gives to no connection. No other process is given it as long as this one
// lives, also while what listens there is not yet, or no longer, running: the
// UDP port of the same number, which nothing of ours uses, says that it is taken.
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
