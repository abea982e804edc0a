package load

import "errors"

var (
	// ErrNotAcknowledged is what Run returns when the api did not say OK to
	// everything that was sent. Whether it is stored is unknown.
	ErrNotAcknowledged = errors.New("not acknowledged")

	// ErrNotStored means that what ClickHouse has is not what was acknowledged.
	ErrNotStored = errors.New("not exactly what was acknowledged is stored")
)
