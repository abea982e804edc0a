package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"sluice/pkg/change"
	"sluice/pkg/flow"
)

// patchUser changes the token's user.
func (s *Server) patchUser(c *call) error {
	var patch *change.PendingPatch
	body, err := s.document(c, "application/merge-patch+json", func(body []byte) (warnings change.Warnings, err error) {
		patch, warnings, err = change.ReadUserPatch(c.who.Subject, c.who.May(flow.ScopeAdmin), body, s.secrets)
		return warnings, err
	})
	if err != nil {
		return err
	}
	defer body.release()
	// Password hashing is queued. A waiting request keeps its budgeted memory, but no
	// parsing slot.
	made, err := patch.Change(c.r.Context(), s.bodies.processor)
	if err != nil {
		return err
	}
	if len(patch.Ignored) > 0 {
		c.w.Header().Set("Sluice-Ignored", ignoredList(patch.Ignored))
	}
	return s.apply(c, made)
}

// maxIgnored bounds how many members a header names.
const maxIgnored = 20

// ignoredList formats JSON pointers as a list of strings (RFC 9651). Those beyond the bound
// become the token more.
func ignoredList(pointers []string) string {
	more := len(pointers) > maxIgnored
	pointers = pointers[:min(len(pointers), maxIgnored)]
	list := `"` + strings.Join(pointers, `", "`) + `"`
	if more {
		list += ", more"
	}
	return list
}

// getUser returns the token's user, secrets masked.
func (s *Server) getUser(c *call) error {
	target := change.Target{User: c.who.Subject}
	return s.show(c, target, func(e *remembered) (json.RawMessage, error) { return e.User(c.who.Subject) })
}

// document reads a document and passes it to parse. type2 is a second accepted media type.
// The caller releases the body, unless there is an error.
func (s *Server) document(c *call, type2 string, parse func(body []byte) (change.Warnings, error)) (*body, error) {
	if values := c.r.Header["Content-Type"]; len(values) > 0 {
		if media := mediaType(values[0]); media != "application/json" && media != type2 {
			return nil, refuse(codeUnsupportedType, "send the document as application/json in UTF-8")
		}
	}
	body, err := s.bodies.read(c, change.MaxBody)
	if err != nil {
		return nil, err
	}
	if err := s.parse(c.r.Context(), body.bytes, parse); err != nil {
		body.release()
		return nil, err
	}
	return body, nil
}

// parse passes a document to do, within a parsing slot.
func (s *Server) parse(ctx context.Context, body []byte, do func([]byte) (change.Warnings, error)) error {
	if len(body) == 0 {
		return refuse(codeEmptyBody, "the body is empty")
	}
	leave, err := s.slot(ctx)
	if err != nil {
		return err
	}
	defer leave()
	warnings, err := do(body)
	for what, n := range warnings {
		s.metrics.warnings.WithLabelValues(what).Add(float64(n))
	}
	return err
}

// apply publishes a change after checking that it fits and meets the request's conditions.
func (s *Server) apply(c *call, made *change.Change) error {
	ctx, cancel := s.publishing(c)
	defer cancel()
	var etag string
	var err error
	if conditions := conditionOf(c.r.Header); !conditions.none() {
		etag, err = s.applyOn(ctx, made.Target, conditions, func(now *remembered) (*change.Change, error) {
			if made.Empty() {
				return nil, nil
			}
			return made, fits(now.Entry, made)
		})
	} else {
		var now change.Entry
		if now, err = s.state.Entry(ctx, made.Target); err == nil && made.Empty() {
			return answerOK(c.w)
		}
		if err == nil {
			err = fits(now, made)
		}
		if err == nil {
			etag, err = s.publishChange(ctx, made)
		}
	}
	if err != nil {
		return err
	}
	c.w.Header().Set("ETag", etag)
	return answerOK(c.w)
}

// applyOn publishes the change that next makes of the newest state, if that meets the
// conditions, and returns the entity tag of the result. After a conflict with another client
// it retries; a nil change leaves the state unchanged. With conditions it returns once the
// change is applied.
func (s *Server) applyOn(ctx context.Context, target change.Target, conditions condition, next func(now *remembered) (*change.Change, error)) (etag string, err error) {
	for range maxAttempts {
		now, err := s.recall(ctx, target)
		if err != nil {
			return "", err
		}
		if err := conditions.check(&now); err != nil {
			return "", err
		}
		made, err := next(&now)
		if err != nil || made == nil {
			return now.ETag(), err
		}
		made.Expected = &now.expected
		if !conditions.none() {
			made.Base = &now.ID
		}
		etag, err = s.publishChange(ctx, made)
		if err == nil && made.Base != nil {
			err = s.settled(ctx, made)
		}
		if !errors.Is(err, change.ErrStale) {
			return etag, err
		}
	}
	return "", change.ErrStale
}

// fits predicts whether a change can be applied. Pending changes may alter that; the ingester
// checks again.
func fits(now change.Entry, made *change.Change) error {
	_, _, err := change.Apply(now, *made, change.Place{Incarnation: now.Incarnation, Seq: now.Seq + 1})
	return err
}

// maxAttempts bounds the attempts of a change that conflicts with others.
const maxAttempts = 5

// show returns the document of a target.
func (s *Server) show(c *call, target change.Target, document func(*remembered) (json.RawMessage, error)) error {
	ctx, cancel := s.publishing(c)
	defer cancel()
	now, err := s.recall(ctx, target)
	if err != nil {
		return err
	}
	if now.behind {
		return errBehind
	}
	if !now.exists() {
		return refuse(codeNoField, "there is no such dataset field, or it was deleted")
	}
	h := c.w.Header()
	h.Set("ETag", now.ETag())
	h.Set("Cache-Control", "private, no-cache")
	if conditionOf(c.r.Header).unmodified(&now) {
		c.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	body, err := document(&now)
	if err != nil {
		return err
	}
	h["Content-Type"] = jsonType
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = c.w.Write(body)
	return nil
}

// fieldOf is the dataset field of a path, if its name is valid and the token covers its
// table. Path segments are decoded once.
func fieldOf(c *call) (change.Target, error) {
	table, err1 := url.PathUnescape(c.c.Param("tableId"))
	field, err2 := url.PathUnescape(c.c.Param("fieldId"))
	if err := errors.Join(err1, err2); err != nil || table == "" || field == "" {
		return change.Target{}, refuse(codeNoRoute, "a dataset field is named by its table and its own id")
	}
	if !c.who.MayTouch(table) {
		return change.Target{}, refuse(codeTableForbidden, "the access token is limited to other tables")
	}
	_, err := change.NewFieldDelete(table, field, c.who.Subject, 0) // validates the names
	return change.Target{Table: table, Field: field}, err
}

// putField stores a whole dataset field and revives a deleted one.
func (s *Server) putField(c *call) error {
	target, err := fieldOf(c)
	if err != nil {
		return err
	}
	var made *change.Change
	body, err := s.document(c, "", func(body []byte) (warnings change.Warnings, err error) {
		made, warnings, err = change.NewFieldPut(target.Table, target.Field, c.who.Subject, body)
		return warnings, err
	})
	if err != nil {
		return err
	}
	body.release()
	return s.apply(c, made)
}

func (s *Server) getField(c *call) error {
	target, err := fieldOf(c)
	if err != nil {
		return err
	}
	return s.show(c, target, func(e *remembered) (json.RawMessage, error) {
		doc, _ := e.DatasetField()
		return doc, nil
	})
}

// deleteField leaves a tombstone whether or not the field exists: there is no list of
// fields, so none is unknown. Deleting a deleted field publishes nothing.
func (s *Server) deleteField(c *call) error {
	target, err := fieldOf(c)
	if err != nil {
		return err
	}
	ctx, cancel := s.publishing(c)
	defer cancel()
	s.hurry(c) // the body is ignored
	_, err = s.applyOn(ctx, target, conditionOf(c.r.Header), func(now *remembered) (*change.Change, error) {
		if now.Deleted && !now.behind {
			return nil, nil
		}
		// While the state is behind, a second tombstone may be published, which is
		// harmless; refusing the deletion is not.
		return change.NewFieldDelete(target.Table, target.Field, c.who.Subject, 0)
	})
	if err != nil {
		return err
	}
	return answerOK(c.w)
}
