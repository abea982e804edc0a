package endtoend

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/pkg/fatal"
	"sluice/pkg/programtest"
)

// TestReadinessNamesAnEngineWithoutFileDescriptors: its ports accept connections and its process answers, but no
// statement runs.
func TestReadinessNamesAnEngineWithoutFileDescriptors(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.up()
	engine, err := s.EnginePID()
	fatal.If(t, err)
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", engine))
	fatal.If(t, err)
	var before unix.Rlimit
	fatal.If(t, unix.Prlimit(engine, unix.RLIMIT_NOFILE, nil, &before))
	fatal.If(t, unix.Prlimit(engine, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(len(open) / 2), Max: before.Max}, nil))
	ready := func() error { return programtest.AnswersOK(t.Context(), "http://"+s.ops+"/readyz") }
	eventually(t, 20*time.Second, func() error {
		if err := ready(); err == nil || !strings.Contains(err.Error(), "ClickHouse runs no statement") {
			return errors.Join(errors.New("/readyz does not name the engine"), err)
		}
		return nil
	})
	fatal.If(t, unix.Prlimit(engine, unix.RLIMIT_NOFILE, &before, nil))
	eventually(t, 20*time.Second, ready)
}
