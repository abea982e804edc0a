// Package budget bounds what the bodies of requests in flight may take: memory, fairly
// shared between those who post (budget.go, half.go), and time, with clients that keep
// others waiting cut off (pace.go). It knows nothing of what is in a body.
//
// The memory of a body is charged as its bytes arrive, so that announcing one takes
// none. A request waits for memory for a bounded time, and is told then that there is
// none (ErrNoMemory): nothing of a request is held while it is not worked on but what
// it has been granted.
package budget
