package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"sluice/pkg/change"
	"sluice/pkg/record"
)

// fieldOf is the dataset field that a path names, if its table is one the caller
// may touch. Its segments are decoded once.
func fieldOf(c *call) (change.Target, error) {
	table, err1 := url.PathUnescape(c.c.Param("tableId"))
	field, err2 := url.PathUnescape(c.c.Param("fieldId"))
	if err := errors.Join(err1, err2); err != nil || table == "" || field == "" {
		return change.Target{}, refuse(codeNoRoute, "a dataset field is named by its table and its own id")
	}
	if !c.who.MayTouch(table) {
		return change.Target{}, refuse(codeTableForbidden, "the access token lists the tables it is for, and this is none of them")
	}
	return change.Target{Table: table, Field: field}, nil
}

// putField stores a whole dataset field; one that was deleted comes back.
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

// getField shows a dataset field.
func (s *Server) getField(c *call) error {
	target, err := fieldOf(c)
	if err != nil {
		return err
	}
	if _, err := change.NewFieldDelete(target.Table, target.Field, c.who.Subject, 0); err != nil {
		return err // a name that no field can have
	}
	return s.show(c, target, func(e *remembered) (json.RawMessage, error) {
		doc, _ := e.DatasetField()
		return doc, nil
	})
}

// deleteField leaves a tombstone where a dataset field is, or might be: we keep
// no list of the fields there are, so none is unknown. What is deleted already
// stays as it is, and nothing is published. The answer is the field that was
// deleted, for those who prefer that and may read it.
func (s *Server) deleteField(c *call) error {
	target, err := fieldOf(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), s.cfg.PublishTimeout)
	defer cancel()
	s.hurry(c) // a body says nothing here
	conditions := conditionOf(c.r.Header)
	for range maxAttempts {
		made, err := change.NewFieldDelete(target.Table, target.Field, c.who.Subject, 0)
		if err != nil {
			return err
		}
		now, err := s.recall(ctx, target)
		if err != nil {
			return err
		}
		if err := conditions.check(&now); err != nil {
			return err
		}
		if now.Deleted && !now.behind {
			return answerOK(c.w)
		}
		var was json.RawMessage
		if field, ok := now.DatasetField(); ok && !now.behind && c.who.May(record.ScopeRead) && prefers(c.r.Header, "return", "representation") {
			was = field
		}
		// While the state is behind, a second tombstone may be published. It
		// changes nothing; refusing a deletion would.
		made.Expected = &now.expected
		_, err = s.publishChange(ctx, made)
		if errors.Is(err, change.ErrStale) {
			continue
		}
		if err != nil {
			return err
		}
		if was != nil {
			return answerField(c.w, was, "return=representation")
		}
		return answerOK(c.w)
	}
	return change.ErrStale
}

// answerField answers a write with a document, which the client prefers.
func answerField(w http.ResponseWriter, document json.RawMessage, applied string) error {
	h := w.Header()
	h["Content-Type"] = jsonType
	h.Set("Content-Length", strconv.Itoa(len(document)))
	h.Set("Preference-Applied", applied)
	h.Set("Cache-Control", "private, no-cache")
	_, _ = w.Write(document)
	return nil
}
