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

// The second port implements as much of Elasticsearch as the exporters of Camunda and
// OpenSearch and common shippers need to post unchanged (docs/camunda.md). All else is equal
// to the first port: tokens, rates, memory, identity, the stream.
//
// An exporter resends its whole buffer until it is accepted. So an invalid record must not
// refuse the others: it is dead-lettered with its bytes and its reason, and the bulk is
// accepted.

// DeadLetters stores invalid records. *stream.DeadLetters is the real one.
//
// Publish returns nil once the letter is durable; the same bytes of one source are one
// letter. The error is flow.ErrDeadShare if the source has too many, and flow.ErrFull if all
// together are too many.
//
// Admits fails with flow.ErrDeadShare for a source whose accepted records became too many
// dead letters.
type DeadLetters interface {
	Publish(ctx context.Context, d flow.Dead) error
	Admits(source string) error
}

// elasticRoutes are the routes of that port. The path of a bulk may name an index; other
// paths match by prefix.
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
		missing     = with("none", func(*call) error { return refuse(codeNoRoute, "this port accepts bulks only; there are no indices") })
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

// translate maps a request of an Elasticsearch client to ours: the password of Basic is the
// access token, and any media type of JSON is accepted.
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
	c.Writer.Header()["X-Elastic-Product"] = elasticProduct // clients require it
}

// elasticKey marks a request of the second port; userKey is its user name, which grants no
// rights.
const (
	elasticKey = "elasticsearch"
	userKey    = "user"
)

var elasticProduct = []string{"Elasticsearch"}

const (
	// elasticVersion is checked by clients for compatibility.
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
		_, _ = w.Write(part) // fails only if the client is gone
	}
}

// acknowledge acknowledges templates, policies, and settings without effect: there are no
// indices.
func (s *Server) acknowledge(answer string) handler {
	return func(c *call) error {
		s.swallow(c)
		answerElastic(c.w, http.StatusOK, []byte(answer))
		return nil
	}
}

// swallow reads the rest of a body, up to a deadline. The exporters' clients ignore an answer
// that comes before they have sent everything.
func (s *Server) swallow(c *call) {
	control := http.NewResponseController(c.w)
	_ = control.SetReadDeadline(time.Now().Add(s.cfg.BodyGrace)) // fails only without a connection
	_, _ = io.CopyN(io.Discard, c.r.Body, int64(s.cfg.BulkBytes))
}

// elasticFailure is the answer to a refused request.
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

// elasticStatus is the status of a refusal at the second port. It is 503 if another server,
// or this one later, may accept the request: clients then try their next server.
func elasticStatus(row failure) int {
	switch row.Code {
	case codeStreamFull, codeStreamBusy, codeOverloaded:
		return http.StatusServiceUnavailable
	}
	return row.Status
}

// answerElastic writes the refusal in Elasticsearch's format.
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
	if err != nil { // impossible: strings and integers only
		panic(err)
	}
	h := w.Header()
	r.headers(h, row)
	if f.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Basic realm="sluice", charset="UTF-8"`)
	}
	answerElastic(w, f.Status, body)
}

// postBulk answers once every record of the bulk is durable and the rest is dead-lettered.
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
	s.metrics.elasticRecords.Add(float64(p.Len()))
	took := fmt.Appendf(nil, `{"took":%d`, time.Since(begun).Milliseconds())
	answerElastic(c.w, http.StatusOK, took, answer)
	return nil
}

// letters bounds the concurrent dead letters of a bulk, which share the stream's syncs.
const letters = 32

// deadLetter dead-letters invalid records before the bulk is answered. It is idempotent.
func (s *Server) deadLetter(c *call, refused []record.Refused, received time.Time) error {
	all, ctx := errgroup.WithContext(c.r.Context())
	all.SetLimit(letters)
	for _, r := range refused {
		dead := flow.Dead{
			Message: flow.Message{
				Source: c.who.Source, Subject: c.who.Subject, Received: received, TraceParent: traceParent(c.r.Header),
				Records: 1, Body: r.Raw,
			},
			Index: -1, Code: r.Code, Reason: "posted by Elasticsearch's protocol: |" + r.Pointer + " " + r.Detail,
		}
		all.Go(func() error {
			if err := s.dead.Publish(ctx, dead); err != nil {
				return err
			}
			s.metrics.deadLetters.WithLabelValues(dead.Code).Inc()
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		if errors.Is(err, flow.ErrFull) {
			return refuse(codeStreamFull, "the dead-letter stream is full: list dead letters with sluice dead list, free space with sluice dead drop")
		}
		return err
	}
	return nil
}
