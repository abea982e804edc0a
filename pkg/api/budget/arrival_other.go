//go:build !linux

package budget

import (
	"net"
	"time"
)

// arrival is unknown: the whole duration of a read counts as silence.
func arrival(net.Conn) (unread bool, ago time.Duration) { return false, 0 }
