package nats

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
)

// logger writes the server's lines to slog. A fatal line does not end this process: Start
// returns it.
type logger struct {
	log   *slog.Logger
	fatal chan error // holds the first fatal line
}

func (l *logger) line(level slog.Level, format string, v []any) {
	if !l.log.Enabled(context.Background(), level) || strings.HasPrefix(format, "Maximum payloads over") {
		return // the lanes need messages of 16 MiB
	}
	text := strings.TrimSpace(fmt.Sprintf(format, v...))
	// A user name may be a password pasted by mistake.
	l.log.Log(context.Background(), level, named.ReplaceAllString(text, `$1 "***"`))
}

// named matches a user name in a line of the server.
var named = regexp.MustCompile(`(User|user) "[^"]*"`)

// Noticef logs at debug level: most notices do not matter on one machine.
func (l *logger) Noticef(format string, v ...any) { l.line(slog.LevelDebug, format, v) }
func (l *logger) Warnf(format string, v ...any)   { l.line(slog.LevelWarn, format, v) }
func (l *logger) Errorf(format string, v ...any)  { l.line(slog.LevelError, format, v) }
func (l *logger) Debugf(format string, v ...any)  { l.line(slog.LevelDebug, format, v) }
func (l *logger) Tracef(format string, v ...any)  { l.line(slog.LevelDebug-4, format, v) }

func (l *logger) Fatalf(format string, v ...any) {
	select {
	case l.fatal <- fmt.Errorf(format, v...):
	default: // only the first is the cause
	}
}
