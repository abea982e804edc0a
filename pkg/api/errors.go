package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"sluice/pkg/api/budget"
	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// code is the code of a refusal, part of the HTTP API.
type code string

// failure is one row of the table of refusals.
type failure struct {
	Code   code
	Status int
	Title  string        // constant; the detail is specific
	Retry  time.Duration // default of Retry-After; 0: a retry would fail again
}

// failures is the only mapping of failures to statuses. docs/http-api.md has the same table.
var failures []failure

// row adds a row to failures.
func row(c code, status int, title string, retry time.Duration) code {
	failures = append(failures, failure{c, status, title, retry})
	return c
}

// Codes of requests. Those of records are in package record.
var (
	codeEmptyBody           = row(record.CodeEmptyBody, http.StatusBadRequest, "The body is empty", 0)
	codeInvalidJSON         = row(record.CodeInvalidJSON, http.StatusBadRequest, "The body is not valid JSON", 0)
	_                       = row(record.CodeInvalidUTF8, http.StatusBadRequest, "The body is not valid UTF-8", 0)
	codeBadCompression      = row("bad_compression", http.StatusBadRequest, "The body cannot be decompressed", 0)
	codeBodyIncomplete      = row("body_incomplete", http.StatusBadRequest, "The body is incomplete", 0)
	codeBadKey              = row("bad_idempotency_key", http.StatusBadRequest, "Invalid Idempotency-Key", 0)
	codeBadTarget           = row("bad_target", http.StatusBadRequest, "Invalid identifier", 0)
	codeBadParameter        = row("bad_parameter", http.StatusBadRequest, "Invalid query parameter", 0)
	codeTokenMissing        = row("token_missing", http.StatusUnauthorized, "Missing access token", 0)
	codeTokenInvalid        = row("token_invalid", http.StatusUnauthorized, "Invalid access token", 0)
	codeScopeMissing        = row("scope_missing", http.StatusForbidden, "The access token does not allow this", 0)
	codeTableForbidden      = row("table_forbidden", http.StatusForbidden, "The access token is not for this table", 0)
	codeTenantForbidden     = row(record.CodeOtherTenant, http.StatusForbidden, "The access token is not for this tenant", 0)
	codeTooManyFields       = row("too_many_fields", http.StatusForbidden, "The subject has too many dataset fields", 0)
	codeNoRoute             = row("no_such_route", http.StatusNotFound, "No such route", 0)
	codeNoField             = row("no_such_field", http.StatusNotFound, "No such dataset field", 0)
	codeMethod              = row("method_not_allowed", http.StatusMethodNotAllowed, "The method is not allowed here", 0)
	codeNotAcceptable       = row("not_acceptable", http.StatusNotAcceptable, "The response would be JSON", 0)
	codeBodyTimeout         = row("body_timeout", http.StatusRequestTimeout, "The body arrived too slowly", 0)
	codeIDMismatch          = row("id_mismatch", http.StatusConflict, "The body's id does not match the request", 0)
	codeChangedMeanwhile    = row("changed_meanwhile", http.StatusConflict, "Concurrent changes", time.Second)
	codeConditionFailed     = row("condition_failed", http.StatusPreconditionFailed, "A condition is not met", 0)
	codeBodyTooLarge        = row("body_too_large", http.StatusRequestEntityTooLarge, "The body is too large", 0)
	codeRatio               = row("compression_ratio", http.StatusRequestEntityTooLarge, "The compression ratio is too high", 0)
	codeTooManyRecords      = row(record.CodeTooManyRecords, http.StatusRequestEntityTooLarge, "The request holds too many records", 0)
	codeRecordTooLarge      = row(record.CodeRecordTooLarge, http.StatusRequestEntityTooLarge, "A record is too large", 0)
	codeUnsupportedType     = row("unsupported_media_type", http.StatusUnsupportedMediaType, "Unsupported media type", 0)
	codeUnsupportedEncoding = row("unsupported_encoding", http.StatusUnsupportedMediaType, "Unsupported content encoding", 0)
	_                       = row(record.CodeTooDeep, http.StatusUnprocessableEntity, "The JSON is nested too deep", 0)
	codeInvalidRecords      = row("invalid_records", http.StatusUnprocessableEntity, "Invalid records", 0)
	codeInvalidDocument     = row("invalid_document", http.StatusUnprocessableEntity, "Invalid document", 0)
	codeKeyReused           = row("idempotency_key_reused", http.StatusUnprocessableEntity, "The Idempotency-Key was used with another body", 0)
	codeRateLimited         = row("rate_limited", http.StatusTooManyRequests, "Too many requests", time.Second)
	codeOverloaded          = row("overloaded", http.StatusTooManyRequests, "Too much is in flight", time.Second)
	codePasswordsBusy       = row("passwords_busy", http.StatusTooManyRequests, "Too many passwords at once", time.Second)
	codeStreamFull          = row("stream_full", http.StatusTooManyRequests, "The stream is full", 5*time.Second)
	codeStreamBusy          = row("stream_busy", http.StatusTooManyRequests, "The stream is busy", time.Second)
	codeDeadLettersFull     = row("dead_letters_full", http.StatusTooManyRequests, "The source has too many dead letters", time.Minute)
	codeStateFull           = row("state_full", http.StatusTooManyRequests, "The state store is full", time.Minute)
	codeInternal            = row("internal", http.StatusInternalServerError, "Internal error", 0)
	codeDiskFull            = row("disk_full", http.StatusServiceUnavailable, "The disk of the stream is full", 15*time.Second)
	codeStreamUnavailable   = row("stream_unavailable", http.StatusServiceUnavailable, "The stream cannot be reached", 2*time.Second)
	codeSourceHeld          = row("source_held", http.StatusServiceUnavailable, "The source is being moved", 10*time.Second)
	codeStateBehind         = row("state_behind", http.StatusServiceUnavailable, "The newest state is not applied yet", time.Second)
	codeTokenUnverified     = row("token_unverified", http.StatusServiceUnavailable, "The access token cannot be checked", 5*time.Second)
)

// byCode is the row of a code.
func byCode(c code) failure {
	for _, f := range failures {
		if f.Code == c {
			return f
		}
	}
	return byCode(codeInternal)
}

// refusal is a refused request with details for its client. It never carries a submitted
// value.
type refusal struct {
	code      code
	detail    string           // a sentence
	problems  []record.Problem // one by one, at most 100
	total     int              // number of problems, if more than listed
	retry     time.Duration    // overrides the table's Retry; 0: unknown
	challenge string           // of WWW-Authenticate, after scheme and realm
	cause     error            // for the log, if internal
}

func (r *refusal) Error() string { return string(r.code) + ": " + r.detail }
func (r *refusal) Unwrap() error { return r.cause }

func refuse(c code, detail string) *refusal { return &refusal{code: c, detail: detail} }

// refusalOf maps a failure to its refusal. Unknown failures are internal errors.
func refusalOf(err error) *refusal {
	var r *refusal
	if errors.As(err, &r) {
		return r
	}
	if r = streamRefusal(err); r == nil {
		r = recordRefusal(err)
	}
	if r == nil {
		r = stateRefusal(err)
	}
	if r == nil {
		r = &refusal{code: codeInternal, detail: "the request could not be handled; its id is in the log", cause: err}
	}
	var again *flow.RetryError
	if errors.As(err, &again) {
		r.retry = again.After
	}
	return r
}

// streamRefusal maps failures of the stream and of memory.
func streamRefusal(err error) *refusal {
	switch {
	case errors.Is(err, budget.ErrNoMemory):
		return refuse(codeOverloaded, "the memory for bodies in flight is used up")
	case errors.Is(err, flow.ErrFull):
		return refuse(codeStreamFull, "the stream's disk budget is used up until older records are stored")
	case errors.Is(err, flow.ErrDeadShare):
		return refuse(codeDeadLettersFull, "replay or drop dead letters of the source (sluice dead list); other sources are not affected")
	case errors.Is(err, flow.ErrBusy):
		return refuse(codeStreamBusy, "too many publishes to the stream are in flight")
	case errors.Is(err, flow.ErrHeld):
		return refuse(codeSourceHeld, "the source is being moved to other lanes; retry")
	case errors.Is(err, flow.ErrKeyReused):
		return refuse(codeKeyReused, "the Idempotency-Key was used with another body within the window")
	case errors.Is(err, flow.ErrTooLarge):
		return refuse(codeRecordTooLarge, "a record exceeds the stream's message limit")
	case errors.Is(err, flow.ErrDiskFull):
		return refuse(codeDiskFull, "nothing is accepted until the operator frees disk space; acknowledged records are kept; retry, with the same Idempotency-Key if it had one")
	case errors.Is(err, flow.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return refuse(codeStreamUnavailable, "the outcome is unknown; retry, with the same Idempotency-Key if it had one")
	}
	return nil
}

// recordRefusal maps invalid records.
func recordRefusal(err error) *refusal {
	var syntax *record.SyntaxError
	var limit *record.LimitError
	var problems *record.ProblemsError
	switch {
	case errors.As(err, &syntax):
		detail := fmt.Sprintf("%s, at byte %d", syntax.Detail, syntax.Offset)
		return &refusal{code: code(syntax.Code), detail: detail, problems: []record.Problem{
			{Index: syntax.Index, Pointer: "#", Code: syntax.Code, Detail: detail},
		}}
	case errors.As(err, &limit):
		return &refusal{code: code(limit.Code), detail: limit.Detail, problems: []record.Problem{
			{Index: limit.Index, Pointer: "#", Code: limit.Code, Detail: limit.Detail},
		}}
	case errors.As(err, &problems):
		of := codeInvalidRecords
		if !slices.ContainsFunc(problems.Problems, func(p record.Problem) bool { return p.Code != record.CodeOtherTenant }) {
			of = codeTenantForbidden // all problems are of other tenants
		}
		return &refusal{
			code: of, detail: "nothing of the request was stored; errors lists the invalid records",
			problems: problems.Problems, total: problems.Total,
		}
	}
	return nil
}

// problem is the body of every refusal (RFC 9457).
type problem struct {
	Type     string  `json:"type"` // anchor in /docs
	Title    string  `json:"title"`
	Status   int     `json:"status"`
	Detail   string  `json:"detail,omitempty"`
	Instance string  `json:"instance"` // urn:uuid: and the id of the request
	Code     code    `json:"code"`
	Errors   []wrong `json:"errors,omitempty"`
	Total    int     `json:"totalErrors,omitempty"` // if more than listed in Errors
}

// wrong is one error in a body.
type wrong struct {
	Index   *int   `json:"index,omitempty"` // of the record; absent in other documents
	Pointer string `json:"pointer"`         // JSON pointer as a URI fragment
	Code    string `json:"code"`
	Detail  string `json:"detail"`
}

func wrongs(problems []record.Problem) []wrong {
	list := make([]wrong, len(problems))
	for i, p := range problems {
		list[i] = wrong{Pointer: p.Pointer, Code: p.Code, Detail: p.Detail}
		if p.Index >= 0 {
			list[i].Index = &problems[i].Index
		}
	}
	return list
}

var (
	problemType = []string{"application/problem+json"}
	noStore     = []string{"no-store"}
)

// answer writes the refusal.
func (r *refusal) answer(w http.ResponseWriter, requestID string) {
	row := byCode(r.code)
	p := problem{
		Type: "/docs#" + string(row.Code), Title: row.Title, Status: row.Status, Detail: r.detail,
		Instance: "urn:uuid:" + requestID, Code: row.Code, Errors: wrongs(r.problems),
	}
	if r.total > len(r.problems) {
		p.Total = r.total
	}
	h := w.Header()
	r.headers(h, row)
	body, err := json.Marshal(p)
	if err != nil { // impossible: strings and integers only
		panic(err)
	}
	h["Content-Type"] = problemType
	h["Cache-Control"] = noStore
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(row.Status)
	_, _ = w.Write(body) // fails only if the client is gone
}

// headers sets the headers of a refusal.
func (r *refusal) headers(h http.Header, row failure) {
	retry := r.retry
	if retry <= 0 {
		retry = row.Retry
	}
	if retry > 0 {
		h.Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(float64(retry)/float64(time.Second))))))
	}
	switch row.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		challenge := `Bearer realm="sluice"`
		if r.challenge != "" {
			challenge += ", " + r.challenge
		}
		h.Set("WWW-Authenticate", challenge)
	}
	switch row.Code {
	case codeBodyTimeout, codeBodyIncomplete, codeBodyTooLarge:
		h.Set("Connection", "close") // the rest of the body is not read
	case codeUnsupportedEncoding:
		h.Set("Accept-Encoding", "gzip, zstd") // RFC 9110, 15.5.16
	}
}
