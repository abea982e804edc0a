package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

// What a Supervisor and its child share besides their signals.
const (
	envSupervised = "EMBEDDED_CLICKHOUSE_SUPERVISED"
	lifelineFD    = 3 // read by the child; ends when the parent does
	newsFD        = 4 // written by the child: a line when it serves
)

// ErrOrphaned is why the context of Child ends.
var ErrOrphaned = errors.New("the process that started the engine is gone")

// Child is for the child of a Supervisor: the context it returns ends
// when the parent does, and ready tells the parent. For any other process it
// changes nothing.
func Child(ctx context.Context, ready func(native, http net.Addr)) (context.Context, context.CancelCauseFunc, func(native, http net.Addr)) {
	ctx, cancel := context.WithCancelCause(ctx)
	if os.Getenv(envSupervised) == "" {
		return ctx, cancel, ready
	}
	os.Unsetenv(envSupervised) // The files are this process's, not its children's.
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
