package programtest_test

import (
	"net"
	"testing"

	"sluice/pkg/fatal"
	"sluice/pkg/programtest"
)

func TestAnAddressIsFreeAndKept(t *testing.T) {
	addr := programtest.Address()
	l, err := net.Listen("tcp", addr)
	fatal.When(t, err != nil, "what the address is for cannot listen there: %v", err)
	l.Close()
	if other, err := net.ListenPacket("udp", addr); err == nil {
		other.Close()
		t.Errorf("another process would be given %s too", addr)
	}
}
