//go:build !linux

package budget

import (
	"net"
	"time"
)

// arrival is unknown: all the time that a read takes counts as the client's silence.
func arrival(net.Conn) (unread bool, ago time.Duration) { return false, 0 }
