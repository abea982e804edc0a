package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/sync/errgroup"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// The second port speaks as much Elasticsearch as the exporters of Camunda and
// OpenSearch need, and common shippers: they post here as they are
// (docs/camunda.md). Behind it everything is the same as behind the first:
// tokens, rates, memory, identity, the stream.
//
// An exporter sends its whole buffer again and again until it is taken. So one
// record that is none must not refuse the others: it is dead-lettered with its bytes
// and its reason, and the bulk is accepted.

// DeadLetters keeps what is no record. *stream.DeadLetters is the real one.
//
// SetAside returns nil once the letter is durable; the same bytes of the same
// source are one letter. The error is flow.ErrDeadShare when its source has too many, and
// flow.ErrFull when all together are too many.
//
// Admits is flow.ErrDeadShare for a source whose accepted records became too many dead
// letters.
type DeadLetters interface {
	SetAside(ctx context.Context, d flow.Dead) error
	Admits(source string) error
}

// elasticRoutes are what is answered there. The path of a bulk may name an
// index; of all others only the beginning counts.
func (s *Server) elasticRoutes() {
	with := func(route string, h handler) gin.HandlerFunc {
		return s.guarded("elasticsearch "+route, flow.ScopeRecordsWrite, h)
	}
	var (
		bulk        = with("POST /_bulk", s.postBulk)
		info        = with("GET /", answers(elasticInfo))
		license     = with("GET /_license", answers(elasticLicense))
		health      = with("GET /_cluster/health", answers(elasticHealth))
		acknowledge = with("PUT", s.acknowledge(`{"acknowledged":true}`))
		ism         = with("POST /_plugins/_ism", s.acknowledge(`{"updated_indices":0,"failures":false,"failed_indices":[]}`))
		missing     = with("none", func(*call) error { return refuse(codeNoRoute, "Sluice takes bulks here, and knows no index") })
	)
	s.elastic.NoRoute(translate, func(c *gin.Context) {
		method, path := c.Request.Method, c.Request.URL.Path
		get := method == http.MethodGet || method == http.MethodHead
		switch {
		case (method == http.MethodPost || method == http.MethodPut) && isBulk(path):
			bulk(c)
		case get && path == "/":
			info(c)
		case get && (path == "/_license" || path == "/_xpack"):
			license(c)
		case get && strings.HasPrefix(path, "/_cluster/health"):
			health(c)
		case method == http.MethodPut, method == http.MethodDelete:
			acknowledge(c)
		case method == http.MethodPost && strings.HasPrefix(path, "/_plugins/_ism/"):
			ism(c)
		default:
			missing(c)
		}
	})
}

// isBulk: /_bulk, /INDEX/_bulk as some shippers have it, or /_bulk/ as Fluent Bit
// does with a pipeline.
func isBulk(path string) bool {
	rest, ok := strings.CutSuffix(strings.TrimSuffix(path, "/"), "/_bulk")
	return ok && strings.Count(rest, "/") <= 1
}

// translate says in our words what a client of Elasticsearch says in its own:
// the password of Basic is the access token; and it takes JSON under any name.
func translate(c *gin.Context) {
	h := c.Request.Header
	scheme, packed, _ := strings.Cut(strings.TrimSpace(h.Get("Authorization")), " ")
	if strings.EqualFold(scheme, "basic") {
		user, token := "", ""
		if plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(packed)); err == nil {
			user, token, _ = strings.Cut(string(plain), ":")
		}
		c.Set(userKey, user)
		h.Set("Authorization", "Bearer "+token)
	}
	h.Del("Accept")
	c.Set(elasticKey, true)
	c.Writer.Header()["X-Elastic-Product"] = elasticProduct // clients believe no answer without it
}

// elasticKey marks a request of the second port, userKey is the user name that it
// brings, which no right follows from.
const (
	elasticKey = "elasticsearch"
	userKey    = "user"
)

var elasticProduct = []string{"Elasticsearch"}

const (
	// elasticVersion is what clients compare theirs with.
	elasticVersion = "8.17.0"

	elasticInfo = `{"name":"sluice","cluster_name":"sluice","cluster_uuid":"c2x1aWNlAAAAAAAAAAAAAA","version":{"number":"` + elasticVersion + `",` +
		`"build_flavor":"default","build_type":"tar","build_hash":"0000000000000000000000000000000000000000","build_date":"2024-12-11T12:02:06.341986156Z",` +
		`"build_snapshot":false,"lucene_version":"9.12.0","minimum_wire_compatibility_version":"7.17.0","minimum_index_compatibility_version":"7.0.0"},` +
		`"tagline":"You Know, for Search"}`
	elasticLicense = `{"license":{"status":"active","uid":"00000000-0000-0000-0000-000000000000","type":"basic","issue_date":"2024-01-01T00:00:00.000Z",` +
		`"issue_date_in_millis":1704067200000,"max_nodes":1000,"issued_to":"sluice","issuer":"sluice","start_date_in_millis":-1}}`
	elasticHealth = `{"cluster_name":"sluice","status":"green","timed_out":false,"number_of_nodes":1,"number_of_data_nodes":1,"active_primary_shards":0,` +
		`"active_shards":0,"relocating_shards":0,"initializing_shards":0,"unassigned_shards":0,"delayed_unassigned_shards":0,"number_of_pending_tasks":0,` +
		`"number_of_in_flight_fetch":0,"task_max_waiting_in_queue_millis":0,"active_shards_percent_as_number":100.0}`
)

func answers(body string) handler {
	return func(c *call) error { answerElastic(c.w, http.StatusOK, []byte(body)); return nil }
}

func answerElastic(w http.ResponseWriter, status int, body ...[]byte) {
	n := 0
	for _, part := range body {
		n += len(part)
	}
	h := w.Header()
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{strconv.Itoa(n)}
	w.WriteHeader(status)
	for _, part := range body {
		_, _ = w.Write(part) // the client is gone when this fails
	}
}

// acknowledge takes templates, policies and settings, and forgets them: there
// are no indices.
func (s *Server) acknowledge(answer string) handler {
	return func(c *call) error {
		s.swallow(c)
		answerElastic(c.w, http.StatusOK, []byte(answer))
		return nil
	}
}

// swallow reads what is left of a body, as far as it comes soon. The exporters'
// clients do not look at an answer that comes before they have sent all.
func (s *Server) swallow(c *call) {
	control := http.NewResponseController(c.w)
	_ = control.SetReadDeadline(time.Now().Add(s.cfg.BodyGrace)) // or there is no connection
	_, _ = io.CopyN(io.Discard, c.r.Body, int64(s.cfg.BulkBytes))
}

// elasticFailure is the answer to a request that is refused as a whole.
type elasticFailure struct {
	Error struct {
		Type      string          `json:"type"`
		Reason    string          `json:"reason"`
		RootCause []elasticReason `json:"root_cause"`
	} `json:"error"`
	Status int `json:"status"`
}

type elasticReason struct {
	Type   string `json:"type"`
	Reason string `json:"reason"`
}

// elasticStatus is the status of a refusal at the second port. What another
// server, or this one a little later, may take is 503: clients that know several
// go to the next one.
func elasticStatus(row failure) int {
	switch row.Code {
	case codeStreamFull, codeStreamBusy, codeOverloaded:
		return http.StatusServiceUnavailable
	}
	return row.Status
}

// answerElastic writes the refusal as Elasticsearch would.
func (r *refusal) answerElastic(w http.ResponseWriter) {
	row := byCode(r.code)
	var f elasticFailure
	f.Status = elasticStatus(row)
	f.Error.Type, f.Error.Reason = string(r.code)+"_exception", row.Title
	if r.detail != "" {
		f.Error.Reason += ": " + r.detail
	}
	f.Error.RootCause = []elasticReason{{f.Error.Type, f.Error.Reason}}
	body, err := json.Marshal(f)
	if err != nil { // strings and integers only: cannot happen
		panic(err)
	}
	h := w.Header()
	r.headers(h, row)
	if f.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Basic realm="sluice", charset="UTF-8"`)
	}
	answerElastic(w, f.Status, body)
}

// postBulk answers once every record of the bulk is durable, and everything
// else of it is dead-lettered.
func (s *Server) postBulk(c *call) error {
	begun := time.Now()
	if err := s.dead.Admits(c.who.Source); err != nil {
		return err
	}
	body, err := s.bodies.read(c, s.cfg.BulkBytes)
	if err != nil {
		return err
	}
	defer body.release()
	var b bulk
	if err := b.parse(body.bytes); err != nil {
		return err
	}
	index, _, _ := strings.Cut(strings.TrimPrefix(c.r.URL.Path, "/"), "/")
	answer := b.answer(index, c.id)

	p := s.newPosting(c, len(body.bytes))
	defer p.release()
	var refused []record.Refused
	err = p.parse("", func(received time.Time) (err error) {
		refused, err = p.ParseEach(body.bytes, b.docs, s.limitsOf(c.who))
		return err
	})
	if err != nil {
		return err
	}
	if err := s.deadLetter(c, refused, begun); err != nil {
		return err
	}
	if _, err := p.publish(); err != nil {
		return err
	}
	s.metrics.accepted(c.who.Source, p.Request, false)
	s.spans.accepted(c, p.Request, false)
	s.metrics.elasticRecords.Add(float64(p.Len()))
	took := fmt.Appendf(nil, `{"took":%d`, time.Since(begun).Milliseconds())
	answerElastic(c.w, http.StatusOK, took, answer)
	return nil
}

// letters is how many dead letters of a bulk are on their way at once: they
// share the stream's syncs.
const letters = 32

// deadLetter keeps what is no record, before the bulk is answered. Repeating it is
// harmless.
func (s *Server) deadLetter(c *call, refused []record.Refused, received time.Time) error {
	all, ctx := errgroup.WithContext(c.r.Context())
	all.SetLimit(letters)
	for _, r := range refused {
		dead := flow.Dead{
			Message: flow.Message{
				Source: c.who.Source, Subject: c.who.Subject, Received: received, TraceParent: s.spans.parent(c),
				Records: 1, Body: r.Raw,
			},
			Index: -1, Code: r.Code, Reason: "posted as Elasticsearch has it: " + r.Pointer + " " + r.Detail,
		}
		all.Go(func() error {
			if err := s.dead.SetAside(ctx, dead); err != nil {
				return err
			}
			s.metrics.deadLetters.WithLabelValues(dead.Code).Inc()
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		if errors.Is(err, flow.ErrFull) {
			return refuse(codeStreamFull, "there is no room for more dead letters: sluice dead list shows them, sluice dead drop makes room")
		}
		return err
	}
	return nil
}
