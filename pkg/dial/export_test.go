package dial

import "time"

// NewDialer makes connections to servers that speak first.
func NewDialer(silence time.Duration) *dialer { return newDialer(silence, true) }

// Forget dials, and never fetches the connection.
func (d *dialer) Forget(network, address string) {
	result := make(chan dialed, 1)
	conn, err := d.connect(network, address)
	result <- dialed{conn, err, time.Now()}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dialing[address] = result
}
