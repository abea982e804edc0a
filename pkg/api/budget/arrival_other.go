//go:build !linux

package budget

import (
	"net"
	"time"
)

// Elsewhere nothing is known of what came before it was read.
func bytesWait(net.Conn) bool { return false }

func sinceBytesCame(net.Conn) time.Duration { return 0 }
