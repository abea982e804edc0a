package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// Stream stores submissions. *stream.Publisher is the real one.
//
// Publish returns nil only once every record is durable. After an error some may be;
// publishing the same again completes them. It keeps nothing of the records after it
// returned. A recently published ID with the same Hash is Replayed and stored once; with
// another Hash the error is flow.ErrKeyReused.
type Stream interface {
	Publish(ctx context.Context, s *flow.Submission) (flow.Receipt, error)
}

// Progress reports which records are stored. *stream.Stream is the real one.
//
// WaitStored returns nil once the messages at these places are queryable or dead-lettered,
// and an error if ctx ends before, or if they never will be. Ends returns the last messages
// of a source's lanes.
type Progress interface {
	WaitStored(ctx context.Context, places []flow.Place) error
	Ends(ctx context.Context, source string) ([]flow.Place, error)
}

// posting is a post on its way from its body to the stream. Instances are pooled.
type posting struct {
	*record.Request
	submission flow.Submission
	chunks     []flow.Chunk

	call *call
	s    *Server
	size int // of the body
}

var postings = sync.Pool{New: func() any { return new(posting) }}

// newPosting returns a posting for a body of size bytes.
func (s *Server) newPosting(c *call, size int) *posting {
	p := postings.Get().(*posting)
	p.Request, p.call, p.s, p.size = record.NewRequest(), c, s, size
	return p
}

// release returns it to the pool.
func (p *posting) release() {
	p.Request.Release()
	clear(p.chunks)
	*p = posting{chunks: p.chunks[:0]}
	postings.Put(p)
}

// postRecords answers OK once every record of the request is durable.
func (s *Server) postRecords(c *call) error {
	wait, preferred, err := waitOf(c.r)
	if err != nil {
		return err
	}
	receipt, err := s.accept(c)
	if err != nil {
		return err
	}
	if wait > 0 {
		s.waited(c, receipt.Places, wait, preferred)
	}
	if receipt.Replayed {
		c.w.Header()["Idempotent-Replayed"] = headerTrue
	}
	return answerOK(c.w)
}

// accept makes every record of the request durable. Its memory is released when it returns.
func (s *Server) accept(c *call) (receipt flow.Receipt, err error) {
	if err := s.dead.Admits(c.who.Source); err != nil {
		return receipt, err
	}
	form, err := formOf(c.r.Header)
	if err != nil {
		return receipt, err
	}
	key, err := idempotencyKey(c.r.Header)
	if err != nil {
		return receipt, err
	}
	body, err := s.bodies.read(c, s.cfg.BodyBytes)
	if err != nil {
		return receipt, err
	}
	defer body.release()
	p := s.newPosting(c, len(body.bytes))
	defer p.release()
	err = p.parse(key, func(received time.Time) error {
		return p.Parse(body.bytes, form, s.limitsOf(c.who))
	})
	if err != nil {
		return receipt, err
	}
	if receipt, err = p.publish(); err != nil {
		return receipt, err
	}
	s.metrics.accepted(c.who.Source, p.Request, receipt.Replayed)
	return receipt, nil
}

// parse reads and checks the records, and fills the submission.
func (p *posting) parse(key string, read func(received time.Time) error) error {
	c := p.call
	leave, err := p.s.bodies.processorFor(c.r.Context(), p.size)
	if err != nil {
		return err
	}
	defer leave()
	received := time.Now()
	if err := read(received); err != nil {
		return err
	}
	p.s.metrics.leftOut(c.who, p.Request)
	hash := record.Hash(p.Body()) // after masking: it discloses no secrets
	id, unique := idOf(c.who, key, hash, p.Request)
	p.submission = flow.Submission{
		ID: id, Hash: hash, Subject: c.who.Subject, Source: c.who.Source, Received: received, TraceParent: traceParent(c.r.Header),
		Identified: p.Identified(), Unique: unique, Records: p,
	}
	return nil
}

// Cut is called by Publish once the number of the source's lanes is known.
func (p *posting) Cut(lanes int) (chunks []flow.Chunk, err error) {
	leave, err := p.s.bodies.processorFor(p.call.r.Context(), p.size)
	if err != nil {
		return nil, err
	}
	defer leave()
	p.chunks, err = p.Request.Cut(p.s.cfg.ChunkBytes, lanes, p.chunks[:0])
	return p.chunks, err
}

// publish makes the records durable, if any. A crash before the answer leaves some chunks of
// the request in the stream, or none; the client's retry completes it, and the ingester drops
// the chunks that are already there.
func (p *posting) publish() (flow.Receipt, error) {
	if p.Len() == 0 {
		return flow.Receipt{}, nil
	}
	ctx, cancel := p.s.publishing(p.call)
	defer cancel()
	receipt, err := p.s.stream.Publish(ctx, &p.submission)
	p.s.metrics.publishSeconds.Observe(time.Since(p.submission.Received).Seconds())
	return receipt, err
}

// limitsOf is the limits of a caller's posts.
func (s *Server) limitsOf(who flow.Caller) record.Limits {
	limits := s.limits
	limits.Tenants, limits.Exclude = who.Tenants, who.Exclude
	return limits
}

// idOf chooses the id by which a repeat of the request is recognised. unique: it never is.
func idOf(who flow.Caller, key, hash string, req *record.Request) (id string, unique bool) {
	switch {
	case key != "":
		return submissionID(idOfKey, who, key), false
	case req.AllIDs():
		return submissionID(idOfBody, who, hash), false
	default:
		return randomID(), true
	}
}

// The answer of successful operations and its headers, shared by all requests: read-only.
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
	_, _ = w.Write(okBody) // fails only if the client is gone; the records are durable
	return nil
}

// formOf returns the format of a body.
func formOf(h http.Header) (record.Form, error) {
	values := h["Content-Type"]
	if len(values) == 0 || values[0] == "application/json" {
		return record.FormAuto, nil // without a media type: the specification's format
	}
	switch mediaType(values[0]) {
	case "application/json":
		return record.FormAuto, nil
	case "application/x-ndjson", "application/ndjson", "application/jsonl":
		return record.FormNDJSON, nil
	}
	return 0, refuse(codeUnsupportedType, "send records as application/json or application/x-ndjson in UTF-8")
}

// mediaType returns the media type in lower case, empty if malformed or not UTF-8.
func mediaType(value string) string {
	media, params, err := mime.ParseMediaType(value)
	if charset, ok := params["charset"]; err != nil || ok && !strings.EqualFold(charset, "utf-8") {
		return ""
	}
	return media
}

// idempotencyKey returns the Idempotency-Key of a request, empty if absent. It may be bare or
// quoted, as in the draft standard.
func idempotencyKey(h http.Header) (string, error) {
	values := h["Idempotency-Key"]
	if len(values) == 0 {
		return "", nil
	}
	key := strings.Trim(values[0], " \t")
	if n := len(key); n >= 2 && key[0] == '"' && key[n-1] == '"' {
		key = key[1 : n-1]
	}
	if len(values) > 1 || key == "" || len(key) > 255 {
		return "", refuse(codeBadKey, "send one Idempotency-Key of 1 to 255 characters")
	}
	for i := range len(key) {
		if key[i] < 0x20 || key[i] > 0x7e {
			return "", refuse(codeBadKey, "Idempotency-Key must be printable ASCII")
		}
	}
	return key, nil
}

// Kinds of submission ids, which never collide.
const (
	idOfKey  = "key"  // the client's Idempotency-Key
	idOfBody = "body" // the hash of the body
)

// submissionID is the id of a request within the deduplication window. Two subjects never
// share one, so that none can detect or block another's posts; nor do two sources of one
// subject, whose equal records are different ones.
func submissionID(kind string, who flow.Caller, key string) string {
	h := sha256.New()
	var size [8]byte
	for _, part := range []string{kind, who.Source, who.Subject, key} {
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		h.Write(size[:])
		h.Write([]byte(part))
	}
	var sum [sha256.Size]byte
	return hex.EncodeToString(h.Sum(sum[:0])[:16])
}

// randomID is the id of a request that is never recognised as a repeat.
func randomID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

const (
	defaultWait = 5 * time.Second  // of ?wait=stored
	maxWait     = 30 * time.Second // limit of Prefer: wait
)

// waitOf is how long the answer waits until the records are stored, 0 for no wait, by
// ?wait=stored or Prefer: wait=N (seconds).
func waitOf(r *http.Request) (wait time.Duration, preferred bool, err error) {
	if r.URL.RawQuery != "" {
		query, err := url.ParseQuery(r.URL.RawQuery)
		if values, ok := query["wait"]; ok || err != nil {
			if err != nil || len(values) != 1 || values[0] != "stored" {
				return 0, false, refuse(codeBadParameter, "the only query parameter is wait=stored")
			}
			wait = defaultWait
		}
	}
	if text, ok := preference(r.Header, "wait"); ok { // invalid preferences are ignored (RFC 7240)
		if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
			wait, preferred = min(time.Duration(seconds)*time.Second, maxWait), true
		}
	}
	return wait, preferred, nil
}

// waited waits until the records are stored, and reports it in a header. It holds nothing of
// the request meanwhile. The records are durable even if the client disconnects.
func (s *Server) waited(c *call, places []flow.Place, wait time.Duration, preferred bool) {
	// The write deadline starts after the wait.
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(wait + 15*time.Second)) // fails only without a connection
	ctx, cancel := context.WithTimeout(c.r.Context(), wait)
	defer cancel()
	defer context.AfterFunc(s.draining, cancel)()
	var err error
	if len(places) == 0 { // a request without records waits for all earlier ones
		places, err = s.progress.Ends(ctx, c.who.Source)
	}
	if err == nil {
		err = s.progress.WaitStored(ctx, places)
	}
	stored, outcome := err == nil, "late"
	if stored {
		outcome = "stored"
	}
	s.metrics.waits.WithLabelValues(outcome).Inc()
	c.w.Header()["Sluice-Stored"] = []string{strconv.FormatBool(stored)}
	if preferred {
		c.w.Header()["Preference-Applied"] = []string{"wait=" + strconv.Itoa(int(wait/time.Second))}
	}
}

// preference is the value of a preference, case-insensitive. The first of several counts.
func preference(h http.Header, name string) (value string, ok bool) {
	for _, values := range h["Prefer"] {
		for _, choice := range strings.Split(values, ",") {
			choice, _, _ = strings.Cut(choice, ";")
			key, value, _ := strings.Cut(choice, "=")
			if strings.EqualFold(strings.TrimSpace(key), name) {
				return strings.Trim(strings.TrimSpace(value), `"`), true
			}
		}
	}
	return "", false
}
