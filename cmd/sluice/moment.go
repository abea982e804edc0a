package main

import (
	"fmt"
	"time"
)

// moment is a time on the command line: 2026-01-31T12:00:00Z, or how long ago
// it was, such as 90m. The zero value is none.
type moment struct{ time.Time }

func (m *moment) UnmarshalText(text []byte) error {
	if ago, err := time.ParseDuration(string(text)); err == nil && ago >= 0 {
		m.Time = time.Now().Add(-ago)
		return nil
	}
	at, err := time.Parse(time.RFC3339, string(text))
	if err != nil {
		return fmt.Errorf("%q is no time: say 90m for as long ago, or 2026-01-31T12:00:00Z", text)
	}
	m.Time = at
	return nil
}
