package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"sluice/pkg/api/budget"
	"sluice/pkg/change"
	"sluice/pkg/record"
)

// Changes publishes changes of users and dataset fields. *stream.Publisher is the real one.
//
// PublishChange returns the change's sequence only once it is durable. It fails with
// change.ErrStale, and stores nothing, if c.Expected is not the last sequence of the target;
// else its errors are those of Stream.
type Changes interface {
	PublishChange(ctx context.Context, c *change.Change) (seq uint64, duplicate bool, err error)
}

// Last returns the newest change of a target in the stream. *stream.Stream is the real one.
// If there is none, the state is current: only applied changes are purged.
type Last interface {
	LastChange(ctx context.Context, t change.Target) (change.Last, error)
}

// State returns entries of targets after the changes applied so far. *state.Store is the real
// one. Missing entries have Seq 0.
type State interface {
	Entry(ctx context.Context, t change.Target) (change.Entry, error)
}

// Usage is the usage of the state store. *state.Usage is the real one.
//
// Fields counts the dataset fields of a subject, and reports whether the target is one of them; ready is false until
// that is known. Expect counts an accepted change. Full reports whether the store is full.
type Usage interface {
	Fields(subject string, t change.Target) (n int, own, ready bool)
	Expect(subject string, t change.Target, size int)
	Full() bool
}

// room refuses a change beyond the limits: of a field too many of its subject, or of anything
// while the state is full. A field that the subject changed last needs no new place.
func (s *Server) room(made *change.Change) error {
	if made.Target.User == "" {
		n, own, ready := s.usage.Fields(made.By, made.Target)
		switch {
		case !ready:
			return errBehind
		case !own && n >= s.cfg.Fields:
			return refuse(codeTooManyFields, fmt.Sprintf("the subject has %d dataset fields, recently deleted ones included, of at most %d", n, s.cfg.Fields))
		}
	}
	if s.usage.Full() && made.Kind != change.FieldDeleted {
		return refuse(codeStateFull, "the state store is full until dataset fields are deleted or its limit is raised (--state-max-bytes)")
	}
	return nil
}

// remembered is the newest state of a target, and the precondition of a change to it.
type remembered struct {
	change.Entry
	expected uint64 // sequence of its last change in the stream; 0: none
	behind   bool   // accepted changes are not applied yet
}

// errBehind means that the state is not the newest.
var errBehind = errors.New("an accepted change is not applied yet")

// recall reads the newest state of a target. It waits until accepted changes are applied:
// read your writes.
func (s *Server) recall(ctx context.Context, t change.Target) (remembered, error) {
	last, err := s.last.LastChange(ctx, t)
	if err != nil {
		return remembered{}, err
	}
	wait, cancel := context.WithTimeout(ctx, s.cfg.StateWait)
	defer cancel()
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		e, err := s.state.Entry(ctx, t)
		if err != nil {
			return remembered{}, err
		}
		if !last.Unread && !e.Place.Before(last.Applied) {
			e.Target = t // a missing entry has no target
			return remembered{Entry: e, expected: last.Seq}, nil
		}
		select {
		case <-time.After(pause):
		case <-wait.Done():
			e.Target = t
			return remembered{Entry: e, expected: last.Seq, behind: true}, nil
		}
		if last.Unread {
			if last, err = s.last.LastChange(ctx, t); err != nil {
				return remembered{}, err
			}
		}
	}
}

// exists reports whether the target can be read. A user always can.
func (r *remembered) exists() bool {
	return r.Target.User != "" || len(r.Doc) > 0
}

// publishChange makes a change durable and returns the entity tag of the resulting state.
func (s *Server) publishChange(ctx context.Context, c *change.Change) (etag string, err error) {
	if err := s.room(c); err != nil {
		return "", err
	}
	start := time.Now()
	_, _, err = s.changes.PublishChange(ctx, c)
	s.metrics.publishSeconds.Observe(time.Since(start).Seconds())
	if err == nil {
		if c.Target.User == "" {
			s.usage.Expect(c.By, c.Target, len(c.Body))
		}
		s.metrics.changes.WithLabelValues(string(c.Kind)).Inc()
	}
	return change.Entry{ID: c.ID}.ETag(), err
}

// settled waits until a published conditional change was applied or ignored, and refuses it if
// ignored: it met another state than its condition. The lane has compared sequences, but after
// a restore the same sequence may be another change's.
func (s *Server) settled(ctx context.Context, c *change.Change) error {
	wait, cancel := context.WithTimeout(ctx, s.cfg.StateWait)
	defer cancel()
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		e, err := s.state.Entry(ctx, c.Target)
		if err != nil {
			return err
		}
		switch ignored, known := e.Outcome(c.ID); {
		case ignored:
			return refuse(codeConditionFailed, "a concurrent change came first; read the state again")
		case known:
			return nil
		}
		select {
		case <-time.After(pause):
		case <-wait.Done():
			return errBehind
		}
	}
}

// slot waits for a parsing slot. JSON grows when parsed; the budget counts it as sent.
func (s *Server) slot(ctx context.Context) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.InFlightWait)
	defer cancel()
	select {
	case s.slots <- struct{}{}:
		return func() { <-s.slots }, nil
	case <-ctx.Done():
		return nil, budget.ErrNoMemory
	}
}

// stateRefusal maps failures of changes and of the state.
func stateRefusal(err error) *refusal {
	var syntax *change.SyntaxError
	var problems *change.ProblemsError
	var target *change.TargetError
	var bad *change.BadChangeError
	switch {
	case errors.As(err, &syntax):
		return &refusal{code: codeInvalidJSON, detail: syntax.Error()}
	case errors.As(err, &problems):
		r := refuse(codeInvalidDocument, "nothing was stored; errors lists the invalid members")
		for _, p := range problems.Problems {
			r.problems = append(r.problems, record.Problem{Index: -1, Pointer: p.Pointer, Code: p.Code, Detail: p.Detail})
		}
		return r
	case errors.As(err, &target):
		return refuse(codeBadTarget, target.Error())
	case errors.As(err, &bad):
		return &refusal{code: codeInvalidDocument, detail: bad.Reason, problems: []record.Problem{
			{Index: -1, Pointer: "#", Code: bad.Code, Detail: bad.Reason},
		}}
	case errors.Is(err, change.ErrTooLarge):
		return tooLarge(change.MaxBody)
	case errors.Is(err, change.ErrConflict):
		return refuse(codeIDMismatch, "id or tableId of the body does not match the request")
	case errors.Is(err, change.ErrStale):
		return refuse(codeChangedMeanwhile, "every attempt conflicted with another change; retry")
	case errors.Is(err, change.ErrBusy):
		return refuse(codePasswordsBusy, "too many passwords are being hashed")
	case errors.Is(err, errBehind):
		return refuse(codeStateBehind, "a recently accepted change is not applied yet; retry")
	}
	return nil
}

// condition is the precondition of a request (RFC 9110, 13).
type condition struct {
	match, noneMatch []string // entity tags, or only "*"; nil: none
}

func conditionOf(h http.Header) condition {
	return condition{tags(h["If-Match"]), tags(h["If-None-Match"])}
}

// tags splits a list of entity tags. Ours have no comma.
func tags(values []string) []string {
	var list []string
	for _, value := range values {
		for _, tag := range strings.Split(value, ",") {
			if tag = strings.Trim(tag, " \t"); tag != "" {
				list = append(list, tag)
			}
		}
	}
	return list
}

func (c condition) none() bool { return c.match == nil && c.noneMatch == nil }

// check refuses a write whose precondition the state does not meet. A weak tag never meets
// If-Match.
func (c condition) check(now *remembered) error {
	if now.behind && !c.none() {
		return errBehind
	}
	if c.match != nil && !matches(c.match, now, false) {
		return refuse(codeConditionFailed, "If-Match does not match the current state; read the state again")
	}
	if c.noneMatch != nil && matches(c.noneMatch, now, true) {
		return refuse(codeConditionFailed, "If-None-Match matches the current state")
	}
	return nil
}

// unmodified reports whether the reader already has this state.
func (c condition) unmodified(now *remembered) bool {
	return c.noneMatch != nil && matches(c.noneMatch, now, true)
}

func matches(tags []string, now *remembered, weak bool) bool {
	if !now.exists() {
		return false
	}
	etag := now.ETag()
	for _, tag := range tags {
		if weak {
			tag = strings.TrimPrefix(tag, "W/")
		}
		if tag == "*" || tag == etag {
			return true
		}
	}
	return false
}
