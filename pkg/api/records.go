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

// Stream is where records go. *stream.Publisher is the real one.
//
// Publish returns nil only once every record of the submission is durable. After
// an error some may be: the same again completes it. It keeps nothing of the records
// after it returned. A submission whose ID it has published a short time ago is
// stored once: it is Replayed when the Hash is the same; when it is another, the
// error is flow.ErrKeyReused.
type Stream interface {
	Publish(ctx context.Context, s *flow.Submission) (flow.Receipt, error)
}

// Progress tells how far records are stored. *stream.Stream is the real one.
//
// WaitStored returns nil once the messages at these places can be queried, or are
// dead-lettered, and an error when ctx ends before, or they never will be. Ends are the last messages of the
// lanes of a source.
type Progress interface {
	WaitStored(ctx context.Context, places []flow.Place) error
	Ends(ctx context.Context, source string) ([]flow.Place, error)
}

// posting is a post on its way from its body to the stream. Its memory is used
// again.
type posting struct {
	*record.Request
	submission flow.Submission
	chunks     []flow.Chunk

	call *call
	s    *Server
	size int // of the body
}

var postings = sync.Pool{New: func() any { return new(posting) }}

// newPosting begins a posting of a body of so many bytes.
func (s *Server) newPosting(c *call, size int) *posting {
	p := postings.Get().(*posting)
	p.Request, p.call, p.s, p.size = record.NewRequest(), c, s, size
	return p
}

// release gives its memory back.
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

// accept makes every record of the request durable. Nothing of the request is held
// afterwards.
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
	s.spans.accepted(c, p.Request, receipt.Replayed)
	return receipt, nil
}

// parse checks the records, which read reads, and makes the submission of them.
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
	hash := record.Hash(p.Body()) // of what is kept: it tells nothing about secrets
	id, unique := idOf(c.who, key, hash, p.Request)
	p.submission = flow.Submission{
		ID: id, Hash: hash, Subject: c.who.Subject, Source: c.who.Source, Received: received, TraceParent: p.s.spans.parent(c),
		Identified: p.Identified(), Unique: unique, Records: p,
	}
	return nil
}

// Cut is called by Publish once it is known how many lanes the source has.
func (p *posting) Cut(lanes int) (chunks []flow.Chunk, err error) {
	leave, err := p.s.bodies.processorFor(p.call.r.Context(), p.size)
	if err != nil {
		return nil, err
	}
	defer leave()
	p.chunks, err = p.Request.Cut(p.s.cfg.ChunkBytes, lanes, p.chunks[:0])
	return p.chunks, err
}

// publish makes the records durable, if there are any. A crash of this process before
// the client has its answer leaves some chunks of the request in the stream or none;
// the client sends it again, under the same id when it or the records have one, and
// the ingester drops what is there already.
func (p *posting) publish() (flow.Receipt, error) {
	if p.Len() == 0 {
		return flow.Receipt{}, nil
	}
	ctx, cancel := context.WithTimeout(p.call.r.Context(), p.s.cfg.PublishTimeout)
	defer cancel()
	receipt, err := p.s.stream.Publish(ctx, &p.submission)
	p.s.spans.observe(p.call, p.s.metrics.publishSeconds, time.Since(p.submission.Received))
	return receipt, err
}

// limitsOf is what a caller may post.
func (s *Server) limitsOf(who flow.Caller) record.Limits {
	limits := s.limits
	limits.Tenants, limits.Exclude = who.Tenants, who.Exclude
	return limits
}

// idOf chooses what makes a repeat of the request known. It is unique when
// nothing does.
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

// formOf tells how the records of a body are written.
func formOf(h http.Header) (record.Form, error) {
	values := h["Content-Type"]
	if len(values) == 0 || values[0] == "application/json" {
		return record.FormAuto, nil // no media type means what the specification says
	}
	switch mediaType(values[0]) {
	case "application/json":
		return record.FormAuto, nil
	case "application/x-ndjson", "application/ndjson", "application/jsonl":
		return record.FormNDJSON, nil
	}
	return 0, refuse(codeUnsupportedType, "records are taken as application/json or application/x-ndjson, in UTF-8")
}

// mediaType returns the media type in small letters, empty when it is malformed
// or not UTF-8.
func mediaType(value string) string {
	media, params, err := mime.ParseMediaType(value)
	if charset, ok := params["charset"]; err != nil || ok && !strings.EqualFold(charset, "utf-8") {
		return ""
	}
	return media
}

// idempotencyKey returns the Idempotency-Key of a request, empty when it has
// none. The key may be bare or, as the draft standard has it, in quotes.
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
		return "", refuse(codeBadKey, "Idempotency-Key is sent once, with 1 to 255 characters")
	}
	for i := range len(key) {
		if key[i] < 0x20 || key[i] > 0x7e {
			return "", refuse(codeBadKey, "Idempotency-Key holds characters other than printable ASCII")
		}
	}
	return key, nil
}

// What a submission's id is made of. Ids of different kinds never meet.
const (
	idOfKey  = "key"  // the client's Idempotency-Key
	idOfBody = "body" // the hash of a body whose records all have ids
)

// submissionID is the id of a request within the deduplication window. Two subjects
// never share one, so that none can learn or block what another one posts; nor do
// two sources of one subject, whose records are different ones even when they read
// the same.
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

// randomID is the id of a request that cannot be told from another one like
// it, and so is never a repeat.
func randomID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: the process ends instead
	return hex.EncodeToString(b[:])
}

const (
	defaultWait = 5 * time.Second  // of ?wait=stored
	maxWait     = 30 * time.Second // whatever a client prefers
)

// waitOf is how long the answer may wait until what was posted is stored, 0 for
// not at all: ?wait=stored asks for it, and so does Prefer: wait=N, which also
// says for how many seconds.
func waitOf(r *http.Request) (wait time.Duration, preferred bool, err error) {
	if r.URL.RawQuery != "" {
		query, err := url.ParseQuery(r.URL.RawQuery)
		if values, ok := query["wait"]; ok || err != nil {
			if err != nil || len(values) != 1 || values[0] != "stored" {
				return 0, false, refuse(codeBadParameter, "of the parameters of the address only wait=stored means something here")
			}
			wait = defaultWait
		}
	}
	if text, ok := preference(r.Header, "wait"); ok { // one that cannot be read is no preference (RFC 7240)
		if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
			wait, preferred = min(time.Duration(seconds)*time.Second, maxWait), true
		}
	}
	return wait, preferred, nil
}

// waited waits until what was posted is stored, and says in the answer whether it
// is. It holds nothing of the request meanwhile. The records
// are durable in any case: a client that goes away changes nothing.
func (s *Server) waited(c *call, places []flow.Place, wait time.Duration, preferred bool) {
	// The time to write the answer begins when there is one.
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(wait + 15*time.Second)) // or there is no connection
	ctx, cancel := context.WithTimeout(c.r.Context(), wait)
	defer cancel()
	defer context.AfterFunc(s.draining, cancel)()
	var err error
	if len(places) == 0 { // a request without records asks for all of before
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

// preference is the value of a preference, whose name is told in any case of
// letters. Of several the first counts.
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
