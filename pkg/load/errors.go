package load

import "errors"

// ErrNotAcknowledged is what Run returns when the api did not say OK to
// everything that was sent. Whether it is stored is unknown.
var ErrNotAcknowledged = errors.New("not acknowledged")
