package api

import (
	"context"
	"net/http"
	"sync"
	"time"

	"sluice/pkg/record"
)

// Stream is where records go. *stream.Publisher is the real one.
//
// Publish returns nil only once every part of the submission is durable, and
// an error when none is, or record.ErrUnavailable when it can not know. It
// keeps nothing of the submission after it returned. A submission whose ID was
// published a short time ago stores nothing: it is Replayed when the Hash is
// the same, else the error is record.ErrKeyReused.
type Stream interface {
	Publish(ctx context.Context, s *record.Submission) (record.Receipt, error)
}

// posting is what one post needs besides its body; used again and again.
type posting struct {
	submission record.Submission
	parts      []record.Part
}

var postings = sync.Pool{New: func() any { return new(posting) }}

// release forgets the submission, so that nothing of it is kept alive.
func (p *posting) release() {
	clear(p.parts)
	p.parts = p.parts[:0]
	p.submission = record.Submission{}
	postings.Put(p)
}

// postRecords answers OK once every record of the request is durable.
func (s *Server) postRecords(c *call) error {
	form, err := formOf(c.r.Header)
	if err != nil {
		return err
	}
	key, err := idempotencyKey(c.r.Header)
	if err != nil {
		return err
	}
	body, err := s.bodies.read(c, s.cfg.BodyBytes)
	if err != nil {
		return err
	}
	defer body.release()

	received := time.Now()
	req := record.NewRequest()
	defer req.Release()
	p := postings.Get().(*posting)
	defer p.release()
	if err := s.prepare(c, req, p, body.bytes, form, received); err != nil {
		return err
	}
	replayed := false
	if req.Len() > 0 {
		if replayed, err = s.publish(c, req, p, body.bytes, key, received); err != nil {
			return err
		}
	}
	s.metrics.accepted(req, replayed)
	if replayed {
		c.w.Header()["Idempotent-Replayed"] = headerTrue
	}
	return answerOK(c.w)
}

// prepare checks the records and makes messages of them.
func (s *Server) prepare(c *call, req *record.Request, p *posting, body []byte, form record.Form, received time.Time) error {
	leave, err := s.bodies.processorFor(c.r.Context(), len(body))
	if err != nil {
		return err
	}
	defer leave()
	if err := req.Parse(body, form, s.limits, received); err != nil {
		return err
	}
	p.parts, err = req.Parts(s.cfg.PartBytes, p.parts)
	return err
}

// publish brings the records into the stream. A crash of this process before
// the client has its answer leaves all of them in the stream or none; the
// client sends them again, under the same id when it or the records have one.
func (s *Server) publish(c *call, req *record.Request, p *posting, body []byte, key string, received time.Time) (bool, error) {
	hash := record.Hash(body)
	p.submission = record.Submission{
		ID: idOf(c.who.Subject, key, hash, req), Hash: hash, Subject: c.who.Subject, Source: c.who.Source,
		Received: received, TraceParent: traceParent(c.r.Header), Parts: p.parts,
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), s.cfg.PublishTimeout)
	defer cancel()
	receipt, err := s.stream.Publish(ctx, &p.submission)
	s.metrics.publishSeconds.Observe(time.Since(received).Seconds())
	return receipt.Replayed, err
}

// idOf chooses what makes a repeat of the request known.
func idOf(subject, key, hash string, req *record.Request) string {
	switch {
	case key != "":
		return submissionID(idOfKey, subject, key)
	case req.AllIDs():
		return submissionID(idOfBody, subject, hash)
	default:
		return randomID()
	}
}

// The answer of every operation that succeeded, and its headers. Shared by all
// requests: never modified.
var (
	okBody     = []byte(`{"status":"OK"}`)
	okLength   = []string{"15"}
	jsonType   = []string{"application/json"}
	headerTrue = []string{"true"}
)

func answerOK(w http.ResponseWriter) error {
	h := w.Header()
	h["Content-Type"] = jsonType
	h["Content-Length"] = okLength
	_, _ = w.Write(okBody) // the client is gone when this fails; what it sent is durable
	return nil
}
