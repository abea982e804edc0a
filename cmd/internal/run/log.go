package run

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"
)

type Logging struct {
	Log string `enum:"auto,text,json" default:"auto" help:"Log format on standard error: text, json, or auto for text on a terminal and JSON elsewhere."`
}

func (l Logging) format() string { return l.Log }

// newLogger logs in one format. Frequent repetitions of warnings and errors are dropped.
func newLogger(w io.Writer, text bool) *slog.Logger {
	options := &slog.HandlerOptions{ReplaceAttr: readable}
	var h slog.Handler = slog.NewJSONHandler(w, options)
	if text {
		h = slog.NewTextHandler(w, options)
	}
	return slog.New(&sampler{Handler: h, seen: &sampled{now: time.Now}})
}

// LogsText reports whether a program's logger writes text, not JSON.
func LogsText(log *slog.Logger) bool {
	s, ok := log.Handler().(*sampler)
	if !ok {
		return false
	}
	_, text := s.Handler.(*slog.TextHandler)
	return text
}

// readable rounds durations and writes times in UTC, to the millisecond.
func readable(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Resolve(); v.Kind() {
	case slog.KindDuration:
		d := v.Duration()
		switch {
		case d >= 10*time.Second:
			d = d.Round(time.Second)
		case d >= time.Second:
			d = d.Round(100 * time.Millisecond)
		default:
			d = d.Round(time.Millisecond)
		}
		a.Value = slog.StringValue(d.String())
	case slog.KindTime:
		a.Value = slog.StringValue(v.Time().UTC().Format("2006-01-02T15:04:05.000Z"))
	}
	return a
}

// Bounds of the sampler. Client errors are logged, but no client can fill a disk with
// them.
const (
	sampleBurst  = 20               // lines of one kind per window
	sampleWindow = 10 * time.Second // window
	sampleKinds  = 256              // kinds counted separately; the rest shares one
)

// sampler drops warnings and errors of one kind beyond a burst, and logs their number
// with the next line of that kind. Each names its runbook.
type sampler struct {
	slog.Handler
	seen *sampled
}

type sampled struct {
	now func() time.Time

	mu    sync.Mutex
	kinds map[string]*kind
}

type kind struct {
	since         time.Time // start of its window
	lines, others int       // others: dropped and not yet reported
}

func (s *sampler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &sampler{s.Handler.WithAttrs(attrs), s.seen}
}

func (s *sampler) WithGroup(name string) slog.Handler {
	return &sampler{s.Handler.WithGroup(name), s.seen}
}

func (s *sampler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return s.Handler.Handle(ctx, r)
	}
	others, pass := s.seen.note(r.Message)
	if !pass {
		return nil
	}
	r = r.Clone()
	r.AddAttrs(runbook(r.Message))
	if others > 0 {
		r.AddAttrs(slog.Int("left_out", others))
	}
	return s.Handler.Handle(ctx, r)
}

// note reports whether to log a line, and how many of its kind were dropped before. Lines
// that differ only in numbers are of one kind.
func (s *sampled) note(message string) (others int, pass bool) {
	name := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, message)
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.kinds[name]
	if !ok && len(s.kinds) >= sampleKinds {
		k, ok = s.kinds[""]
		name = ""
	}
	if !ok {
		if s.kinds == nil {
			s.kinds = map[string]*kind{}
		}
		k = &kind{since: now}
		s.kinds[name] = k
	}
	if now.Sub(k.since) >= sampleWindow {
		k.since, k.lines = now, 0
	}
	if k.lines >= sampleBurst {
		k.others++
		return 0, false
	}
	k.lines++
	others, k.others = k.others, 0
	return others, true
}

// runbooks lists the pages of docs/runbooks for warnings and errors, by texts of their messages. The
// first page with a matching text counts; without one it is README.
var runbooks = []struct {
	page  string
	texts []string
}{
	{"ChangesHalted", []string{"applying changes"}},
	{"LaneHalted", []string{" halted: ", "claim", "a lane was deleted", "a rejected piece"}},
	{"LagOld", []string{" failed, retrying", "inserting fewer rows", "an earlier insert", "consumer silent"}},
	{"LaneWithoutOwner", []string{"lease", "releasing a lane", "the work on a lane ended"}},
	{"RecordsLostInTable", []string{"the table is missing stored records"}},
	{"DeadLettersTight", []string{"fill the dead-letter stream"}},
	{"DeadLetters", []string{"dead-lettered"}},
	{"ClientRejected", []string{"client rejected", "log-in failed", "connection refused", "of another site", "sign-in failed"}},
	{"TokensStale", []string{"token file", "JWT", "JSON Web Key Set", "TLS certificate"}},
	{"ApiErrors", []string{"request failed", "request panicked"}},
	{"EngineDied", []string{"the engine "}},
	{"DiskAlmostFull", []string{"NATS cannot write to its folder"}},
	{"DiskBudgetAlmostUsedUp", []string{"purge lanes"}},
	{"ServerDown", []string{"NATS ", "waiting for ", "look-up of lanes failed", "ClickHouse does not answer"}},
	{"lanes", []string{"the bucket of sources", "entry of a source"}},
}

// runbook is the attribute that names the page for a message.
func runbook(message string) slog.Attr {
	for _, r := range runbooks {
		for _, text := range r.texts {
			if strings.Contains(message, text) {
				return slog.String("runbook", "docs/runbooks/"+r.page+".md")
			}
		}
	}
	return slog.String("runbook", "docs/runbooks/README.md")
}
