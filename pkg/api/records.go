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
// Publish returns nil only once every part of the submission is durable. After
// an error some may be: the same again completes it. It keeps nothing of the
// bodies after it returned. A submission whose ID was published a short time ago
// is stored once: it is Replayed when that is known and the Hash is the same; when
// it is known to be another, the error is record.ErrKeyReused.
//
// Slots says for how many slots a submission of a source must be cut, and within
// two seconds that this cannot be known.
type Stream interface {
	Slots(ctx context.Context, source string) (int, error)
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
	wait, preferred, err := waitOf(c.r)
	if err != nil {
		return err
	}
	replayed, err := s.accept(c)
	if err != nil {
		return err
	}
	if wait > 0 {
		s.waited(c, wait, preferred)
	}
	if replayed {
		c.w.Header()["Idempotent-Replayed"] = headerTrue
	}
	return answerOK(c.w)
}

// accept makes every record of the request durable, and tells whether it was a
// repeat. Nothing of the request is held afterwards.
func (s *Server) accept(c *call) (replayed bool, err error) {
	form, err := formOf(c.r.Header)
	if err != nil {
		return false, err
	}
	key, err := idempotencyKey(c.r.Header)
	if err != nil {
		return false, err
	}
	body, err := s.bodies.read(c, s.cfg.BodyBytes)
	if err != nil {
		return false, err
	}
	defer body.release()

	req := record.NewRequest()
	defer req.Release()
	p := postings.Get().(*posting)
	defer p.release()
	err = s.prepare(c, req, p, len(body.bytes), key, func(received time.Time) error {
		return req.Parse(body.bytes, form, s.limitsOf(c.who), received)
	})
	if err != nil {
		return false, err
	}
	if req.Len() > 0 {
		if replayed, err = s.publish(c, p); err != nil {
			return false, err
		}
	}
	s.metrics.accepted(req, replayed)
	s.spans.accepted(c, req, replayed)
	return replayed, nil
}

// prepare checks the records and makes the submission of them. parse reads them,
// of a body of n bytes.
func (s *Server) prepare(c *call, req *record.Request, p *posting, n int, key string, parse func(received time.Time) error) error {
	// Before the processor is taken: a source that is first seen waits for NATS.
	slots, err := s.stream.Slots(c.r.Context(), c.who.Source)
	if err != nil {
		return err
	}
	leave, err := s.bodies.processorFor(c.r.Context(), n)
	if err != nil {
		return err
	}
	defer leave()
	received := time.Now()
	if err := parse(received); err != nil {
		return err
	}
	hash := record.Hash(req.Body()) // of what is kept: it tells nothing about secrets
	id, unique := idOf(c.who.Subject, key, hash, req)
	req.Spread(slots, id)
	p.parts, err = req.Parts(s.cfg.PartBytes, p.parts)
	p.submission = record.Submission{
		ID: id, Hash: hash, Subject: c.who.Subject, Source: c.who.Source,
		Received: received, TraceParent: s.spans.parent(c), Identified: req.Identified(), Unique: unique, Slots: slots, Parts: p.parts,
	}
	return err
}

// limitsOf is what a caller may post.
func (s *Server) limitsOf(who record.Identity) record.Limits {
	limits := s.limits
	limits.Tenants = who.Tenants
	return limits
}

// publish brings the records into the stream. A crash of this process before
// the client has its answer leaves some pieces of the request in the stream or
// none; the client sends it again, under the same id when it or the records have
// one, and what is there is known.
func (s *Server) publish(c *call, p *posting) (bool, error) {
	ctx, cancel := context.WithTimeout(c.r.Context(), s.cfg.PublishTimeout)
	defer cancel()
	receipt, err := s.stream.Publish(ctx, &p.submission)
	s.spans.observe(c, s.metrics.publishSeconds, time.Since(p.submission.Received))
	return receipt.Replayed, err
}

// idOf chooses what makes a repeat of the request known. It is unique when
// nothing does.
func idOf(subject, key, hash string, req *record.Request) (id string, unique bool) {
	switch {
	case key != "":
		return submissionID(idOfKey, subject, key), false
	case req.AllIDs():
		return submissionID(idOfBody, subject, hash), false
	default:
		return randomID(), true
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
