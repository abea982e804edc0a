package console

import (
	"context"
	"slices"
	"sync"
	"time"
)

// refreshEvery is the interval of automatic refresh. Pages that refresh are as of its
// multiples, and all browsers share the answers of one: a page costs one reading per
// interval, however many people look at it.
const refreshEvery = 15 * time.Second

// sharedAnswers has the answers of the current interval.
type sharedAnswers struct {
	mu      sync.Mutex
	at      time.Time
	answers *sync.Map // by statement
}

type sharedKey struct{}

// asOf lets the sections of a page that is as of a time share their answers.
func (s *sharedAnswers) asOf(ctx context.Context, at time.Time) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.at.Equal(at) {
		s.at, s.answers = at, new(sync.Map)
	}
	return context.WithValue(ctx, sharedKey{}, s.answers)
}

// sharedAnswer is the answer to a statement. Its lock is held while the first that asks
// waits for ClickHouse.
type sharedAnswer[T any] struct {
	mu   sync.Mutex
	said *section[T]
}

// rowsOf runs a statement, or returns the answer that another page of the interval has. Its
// columns are the first exported fields of T in order, including those of embedded structs.
func rowsOf[T any](ctx context.Context, db Warehouse, sql string) section[T] {
	answers, ok := ctx.Value(sharedKey{}).(*sync.Map)
	if !ok {
		return readRows[T](ctx, db, sql)
	}
	found, _ := answers.LoadOrStore(sql, new(sharedAnswer[T]))
	one := found.(*sharedAnswer[T])
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.said == nil {
		read := readRows[T](ctx, db, sql)
		if read.Err != nil { // it may be of this browser alone
			return read
		}
		one.said = &read
	}
	shown := *one.said
	shown.Rows = slices.Clone(shown.Rows)
	return shown
}
