package supervise

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/option"
)

// Config configures a Supervisor.
type Config struct {
	Executable string                // program that serves the engine; default: this one
	Args       []string              // its arguments, like clickhouse --data …
	Env        []string              // its environment; default: this process's
	Output     io.Writer             // of its log lines, unchanged; default: os.Stderr
	Settled    time.Duration         `default:"10s"`   // a child that was ready for this long is restarted immediately
	Backoff    time.Duration         `default:"100ms"` // pause before other restarts, doubled each time
	MaxBackoff time.Duration         `default:"5s"`    // limit of that pause
	Stop       time.Duration         `default:"10s"`   // between SIGTERM and SIGKILL
	Metrics    prometheus.Registerer // default: none

	// Insist also restarts a child that ends before it was ever ready: for a program that
	// does more than run the engine.
	Insist bool

	// Probe sends the engine a query that it answers immediately, and fails if it does not
	// within the context. Default: no probes.
	Probe      func(context.Context) error `json:"-"`
	ProbeEvery time.Duration               `default:"5s"`  // interval of probes
	ProbeLimit time.Duration               `default:"4s"`  // limit of an answer; a slower child is not up
	Silent     time.Duration               `default:"3m"`  // a child without an answer for this long is killed
	Start      time.Duration               `default:"15m"` // with a Probe, a child that does not serve after this is killed
}

func (c Config) withDefaults() (Config, error) {
	if c.Executable == "" {
		self, err := os.Executable()
		if err != nil {
			return c, fmt.Errorf("find this program: %w", err)
		}
		c.Executable = self
	}
	if c.Env == nil {
		c.Env = os.Environ()
	}
	if c.Output == nil {
		c.Output = os.Stderr
	}
	option.Defaults(&c)
	return c, nil
}

// Supervisor keeps the engine's process running. The child cannot outlive this process: it
// holds the other end of a pipe, and on Linux the kernel kills it.
type Supervisor struct {
	cfg     Config
	log     *slog.Logger
	metrics metrics

	mu    sync.Mutex
	ready chan struct{} // closed while a child serves
	up    bool
	ended chan struct{} // closed when Run returns
	err   error         // of Run
}

// New makes a Supervisor. Run starts the child.
func New(cfg Config, log *slog.Logger) *Supervisor {
	return &Supervisor{cfg: cfg, log: log, metrics: newMetrics(cfg.Metrics), ready: make(chan struct{}), ended: make(chan struct{})}
}

// Ready waits until the engine serves. It fails when ctx ends first, or when Run has
// returned.
func (s *Supervisor) Ready(ctx context.Context) error {
	s.mu.Lock()
	ready := s.ready
	s.mu.Unlock()
	select {
	case <-ready:
		return nil
	case <-s.ended:
		if s.err != nil {
			return s.err
		}
		return errors.New("the ClickHouse engine was stopped")
	case <-ctx.Done():
		return fmt.Errorf("wait for the ClickHouse engine: %w", ctx.Err())
	}
}

// Run starts the engine's process and restarts it whenever it dies, until ctx ends; then it
// stops it and returns nil. A child that ends before it was ever ready is not restarted
// unless Insist is set: Run returns its last line, since the cause, a port in use or a
// missing library, needs an operator. Call it once.
func (s *Supervisor) Run(ctx context.Context) (err error) {
	defer func() {
		s.err = err
		close(s.ended)
	}()
	if s.cfg, err = s.cfg.withDefaults(); err != nil {
		return err
	}
	// The kernel kills the child when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pause, served := s.cfg.Backoff, false
	for {
		lived, last, err := s.child(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if served = served || lived > 0; !served && !s.cfg.Insist {
			return fmt.Errorf("the ClickHouse engine did not start: %s", cmp.Or(last, fmt.Sprint(err)))
		}
		if lived >= s.cfg.Settled {
			pause = s.cfg.Backoff
		}
		s.metrics.restarts.Inc()
		s.log.Error("clickhouse: the engine died; restarting it", "reason", err, "served_seconds", lived.Seconds())
		if lived >= s.cfg.Settled {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, s.cfg.MaxBackoff)
	}
}

// child runs one process. It returns how long it served, its last line, and how it ended.
func (s *Supervisor) child(ctx context.Context) (served time.Duration, last string, err error) {
	lifeline, hold, err := os.Pipe()
	if err != nil {
		return 0, "", err
	}
	defer hold.Close() // closed when this process ends in any way
	news, notify, err := os.Pipe()
	if err != nil {
		lifeline.Close()
		return 0, "", err
	}
	defer news.Close()

	lines := &lineWriter{to: s.cfg.Output}
	child := exec.Command(s.cfg.Executable, s.cfg.Args...)
	child.Env = append(s.cfg.Env[:len(s.cfg.Env):len(s.cfg.Env)], envSupervised+"=1")
	child.Stdout, child.Stderr = lines, lines
	child.ExtraFiles = []*os.File{lifelineFD - 3: lifeline, newsFD - 3: notify}
	child.SysProcAttr = childAttributes()
	err = child.Start()
	lifeline.Close()
	notify.Close()
	if err != nil {
		return 0, "", err
	}
	s.log.Info("clickhouse: engine process started", "pid", child.Process.Pid)

	stopped := make(chan struct{})
	var stopping sync.WaitGroup
	stopping.Go(func() { s.stop(ctx, child.Process, stopped) })
	if s.cfg.Probe != nil {
		stopping.Go(func() { s.watch(child.Process, stopped) })
	}
	since := make(chan time.Time, 1)
	go func() {
		defer close(since)
		if _, err := bufio.NewReader(news).ReadString('\n'); err == nil {
			s.setReady(true)
			since <- time.Now()
		}
	}()
	err = child.Wait()
	close(stopped)
	stopping.Wait()
	if begin, ok := <-since; ok { // its end of the pipe is closed
		served = max(time.Since(begin), 1)
	}
	s.setReady(false)
	return served, lines.lastLine(), err
}

// watch kills a process that hangs: one that does not start to serve in time, or stops
// answering. Whatever it acknowledged is stored.
func (s *Supervisor) watch(process *os.Process, ended <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-ended // reached after every start
		cancel()
	}()
	starting, started := context.WithTimeout(ctx, s.cfg.Start)
	err := s.Ready(starting)
	started()
	for lastAnswer, silent := time.Now(), false; err == nil && time.Since(lastAnswer) < s.cfg.Silent; {
		select {
		case <-ended:
			return
		case <-time.After(s.cfg.ProbeEvery):
		}
		answered := s.answers(ctx)
		if answered {
			lastAnswer = time.Now()
		}
		if silent == answered && ctx.Err() == nil {
			silent = !answered
			s.metrics.setUp(answered)
			s.report(answered)
		}
	}
	if ctx.Err() == nil {
		s.log.Error("clickhouse: the engine does not answer; killing it")
		_ = process.Kill() // it may have ended
	}
}

// report logs a change between answering and silent.
func (s *Supervisor) report(answers bool) {
	if answers {
		s.log.Info("clickhouse: the engine answers again")
		return
	}
	s.log.Warn("clickhouse: the engine does not answer; records wait in the stream", "for", s.cfg.ProbeLimit, "killed_after", s.cfg.Silent)
}

// answers probes the engine once. A driver may exceed its context until the process has
// ended.
func (s *Supervisor) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ProbeLimit)
	defer cancel()
	answer := make(chan error, 1)
	go func() { answer <- s.cfg.Probe(ctx) }()
	select {
	case err := <-answer:
		return err == nil
	case <-ctx.Done():
		return false
	}
}

// stop stops the process when ctx ends, unless it ends by itself.
func (s *Supervisor) stop(ctx context.Context, process *os.Process, ended <-chan struct{}) {
	select {
	case <-ended:
		return
	case <-ctx.Done():
	}
	if err := process.Signal(syscall.SIGTERM); err != nil {
		return // it has ended
	}
	select {
	case <-ended:
	case <-time.After(s.cfg.Stop):
		s.log.Warn("clickhouse: the engine does not stop; killing it", "after_seconds", s.cfg.Stop.Seconds())
		process.Kill()
	}
}

func (s *Supervisor) setReady(up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if up == s.up {
		return
	}
	s.up = up
	s.metrics.setUp(up)
	if up {
		close(s.ready)
		return
	}
	s.ready = make(chan struct{})
}

// lineWriter forwards whole lines and keeps the last one.
type lineWriter struct {
	to   io.Writer
	part []byte
	last string
}

const maxLine = 64 << 10

func (l *lineWriter) Write(p []byte) (int, error) {
	l.part = append(l.part, p...)
	end := strings.LastIndexByte(string(l.part), '\n') + 1
	if end == 0 && len(l.part) > maxLine {
		end = len(l.part)
	}
	if end == 0 {
		return len(p), nil
	}
	_, err := l.to.Write(l.part[:end])
	l.note(l.part[:end])
	l.part = append(l.part[:0], l.part[end:]...)
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (l *lineWriter) note(lines []byte) {
	all := strings.Split(strings.TrimSpace(string(lines)), "\n")
	if last := strings.TrimSpace(all[len(all)-1]); last != "" {
		l.last = last
	}
}

// lastLine is the last line written. Call it after the last write.
func (l *lineWriter) lastLine() string {
	l.note(l.part)
	return l.last
}
