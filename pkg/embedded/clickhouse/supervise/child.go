package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

// Shared by a Supervisor and its child, besides signals.
const (
	envSupervised = "EMBEDDED_CLICKHOUSE_SUPERVISED"
	lifelineFD    = 3 // read by the child; closed when the parent ends
	newsFD        = 4 // written by the child: a line when it serves
)

// ErrOrphaned is why the context of Child ends.
var ErrOrphaned = errors.New("the process that started the engine is gone")

// Child is called in the child of a Supervisor: the returned context ends when the parent
// does, and ready notifies the parent. In any other process it has no effect.
func Child(ctx context.Context, ready func(native, http net.Addr)) (context.Context, context.CancelCauseFunc, func(native, http net.Addr)) {
	ctx, cancel := context.WithCancelCause(ctx)
	if os.Getenv(envSupervised) == "" {
		return ctx, cancel, ready
	}
	os.Unsetenv(envSupervised) // children do not inherit the files
	lifeline, news := os.NewFile(lifelineFD, "lifeline"), os.NewFile(newsFD, "news")
	go func() {
		io.Copy(io.Discard, lifeline)
		cancel(ErrOrphaned)
	}()
	return ctx, cancel, func(native, http net.Addr) {
		if ready != nil {
			ready(native, http)
		}
		fmt.Fprintln(news, native, http)
		news.Close()
	}
}
