package run

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Logging is the option of every program that says how it logs.
type Logging struct {
	Log string `enum:"auto,text,json" default:"auto" help:"How to log to standard error: text, json, or auto for text on a terminal and JSON elsewhere."`
}

func (l Logging) format() string { return l.Log }

// newLogger logs lines of one format. Of warnings and errors that say the same it
// leaves out what comes too often.
func newLogger(w io.Writer, text bool) *slog.Logger {
	options := &slog.HandlerOptions{ReplaceAttr: readable}
	var h slog.Handler = slog.NewJSONHandler(w, options)
	if text {
		h = slog.NewTextHandler(w, options)
	}
	return slog.New(&sampler{Handler: h, seen: &sampled{now: time.Now}})
}

// LogsText tells whether a logger of a program writes text, and not JSON.
func LogsText(log *slog.Logger) bool {
	s, ok := log.Handler().(*sampler)
	if !ok {
		return false
	}
	_, text := s.Handler.(*slog.TextHandler)
	return text
}

// readable writes durations as people do, and times to the millisecond.
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

// Bounds of the sampler. What clients do wrong is logged, and none of them can fill a
// disk with it.
const (
	sampleBurst  = 20               // lines that say the same, within
	sampleWindow = 10 * time.Second // this
	sampleKinds  = 256              // different lines that are told apart; all others are one kind
)

// sampler leaves out warnings and errors beyond a burst of those that say the same, and
// says how many they were.
type sampler struct {
	slog.Handler
	seen *sampled
}

// sampled is what was logged lately, by kind.
type sampled struct {
	now func() time.Time

	mu    sync.Mutex
	kinds map[string]*kind
}

type kind struct {
	since         time.Time // begin of its window
	lines, others int       // others: left out since they were told
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
	if others > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", others))
	}
	return s.Handler.Handle(ctx, r)
}

// note tells whether a line is logged, and how many like it were left out before. Lines
// that differ in numbers say the same.
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
