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

// code names a way to be refused. Codes are part of the HTTP API.
type code string

// The codes of whole requests. Those of records stand in package record.
const (
	codeEmptyBody           code = record.CodeEmptyBody
	codeInvalidJSON         code = record.CodeInvalidJSON
	codeInvalidUTF8         code = record.CodeInvalidUTF8
	codeBadCompression      code = "bad_compression"
	codeBodyIncomplete      code = "body_incomplete"
	codeBadKey              code = "bad_idempotency_key"
	codeBadTarget           code = "bad_target"
	codeBadParameter        code = "bad_parameter"
	codeTokenMissing        code = "token_missing"
	codeTokenInvalid        code = "token_invalid"
	codeScopeMissing        code = "scope_missing"
	codeTableForbidden      code = "table_forbidden"
	codeTenantForbidden     code = record.CodeOtherTenant
	codeTooManyFields       code = "too_many_fields"
	codeNoRoute             code = "no_such_route"
	codeNoField             code = "no_such_field"
	codeMethod              code = "method_not_allowed"
	codeNotAcceptable       code = "not_acceptable"
	codeBodyTimeout         code = "body_timeout"
	codeIDMismatch          code = "id_mismatch"
	codeChangedMeanwhile    code = "changed_meanwhile"
	codeConditionFailed     code = "condition_failed"
	codeBodyTooLarge        code = "body_too_large"
	codeRatio               code = "compression_ratio"
	codeTooManyRecords      code = record.CodeTooManyRecords
	codeRecordTooLarge      code = record.CodeRecordTooLarge
	codeUnsupportedType     code = "unsupported_media_type"
	codeUnsupportedEncoding code = "unsupported_encoding"
	codeTooDeep             code = record.CodeTooDeep
	codeInvalidRecords      code = "invalid_records"
	codeInvalidDocument     code = "invalid_document"
	codeKeyReused           code = "idempotency_key_reused"
	codeRateLimited         code = "rate_limited"
	codeOverloaded          code = "overloaded"
	codePasswordsBusy       code = "passwords_busy"
	codeStreamFull          code = "stream_full"
	codeStreamBusy          code = "stream_busy"
	codeStateFull           code = "state_full"
	codeInternal            code = "internal"
	codeStreamUnavailable   code = "stream_unavailable"
	codeSourceHeld          code = "source_held"
	codeStateBehind         code = "state_behind"
	codeTokenUnverified     code = "token_unverified"
)

// failure is one row of the table: what a code is to a client.
type failure struct {
	Code   code
	Status int
	Title  string        // the same for every request; the detail says more
	Retry  time.Duration // after which to try again, when nothing better is known; 0: it would fail again
}

// failures is the one place where failures become statuses.
// docs/http-api.md shows the same table.
var failures = []failure{
	{codeEmptyBody, http.StatusBadRequest, "The body is empty", 0},
	{codeInvalidJSON, http.StatusBadRequest, "The body is not valid JSON", 0},
	{codeInvalidUTF8, http.StatusBadRequest, "The body is not valid UTF-8", 0},
	{codeBadCompression, http.StatusBadRequest, "The body cannot be decompressed", 0},
	{codeBodyIncomplete, http.StatusBadRequest, "The body is incomplete", 0},
	{codeBadKey, http.StatusBadRequest, "The Idempotency-Key cannot be used", 0},
	{codeBadTarget, http.StatusBadRequest, "Nothing can have this name", 0},
	{codeBadParameter, http.StatusBadRequest, "A parameter of the address cannot be used", 0},
	{codeTokenMissing, http.StatusUnauthorized, "An access token is needed", 0},
	{codeTokenInvalid, http.StatusUnauthorized, "The access token is not valid", 0},
	{codeScopeMissing, http.StatusForbidden, "The access token does not allow this", 0},
	{codeTableForbidden, http.StatusForbidden, "The access token is not for this table", 0},
	{codeTenantForbidden, http.StatusForbidden, "The access token is not for this tenant", 0},
	{codeTooManyFields, http.StatusForbidden, "The subject has as many dataset fields as it may", 0},
	{codeNoRoute, http.StatusNotFound, "There is nothing here", 0},
	{codeNoField, http.StatusNotFound, "There is no such dataset field", 0},
	{codeMethod, http.StatusMethodNotAllowed, "The method is not allowed here", 0},
	{codeNotAcceptable, http.StatusNotAcceptable, "The answer would be JSON", 0},
	{codeBodyTimeout, http.StatusRequestTimeout, "The body came too slowly", 0},
	{codeIDMismatch, http.StatusConflict, "The body is about something else", 0},
	{codeChangedMeanwhile, http.StatusConflict, "Others change it at the same time", time.Second},
	{codeConditionFailed, http.StatusPreconditionFailed, "A condition is not met", 0},
	{codeBodyTooLarge, http.StatusRequestEntityTooLarge, "The body is too large", 0},
	{codeRatio, http.StatusRequestEntityTooLarge, "The body is compressed too much", 0},
	{codeTooManyRecords, http.StatusRequestEntityTooLarge, "The request holds too many records", 0},
	{codeRecordTooLarge, http.StatusRequestEntityTooLarge, "A record is too large", 0},
	{codeUnsupportedType, http.StatusUnsupportedMediaType, "The media type is not taken", 0},
	{codeUnsupportedEncoding, http.StatusUnsupportedMediaType, "The content encoding is not taken", 0},
	{codeTooDeep, http.StatusUnprocessableEntity, "The JSON is nested too deep", 0},
	{codeInvalidRecords, http.StatusUnprocessableEntity, "Records are not valid", 0},
	{codeInvalidDocument, http.StatusUnprocessableEntity, "The document is not valid", 0},
	{codeKeyReused, http.StatusUnprocessableEntity, "The Idempotency-Key was used with another body", 0},
	{codeRateLimited, http.StatusTooManyRequests, "Too many requests", time.Second},
	{codeOverloaded, http.StatusTooManyRequests, "Too much is in flight", time.Second},
	{codePasswordsBusy, http.StatusTooManyRequests, "Too many passwords at once", time.Second},
	{codeStreamFull, http.StatusTooManyRequests, "The stream is full", 5 * time.Second},
	{codeStreamBusy, http.StatusTooManyRequests, "The stream takes no more at the moment", time.Second},
	{codeStateFull, http.StatusTooManyRequests, "The state store is full", time.Minute},
	{codeInternal, http.StatusInternalServerError, "Something went wrong here", 0},
	{codeStreamUnavailable, http.StatusServiceUnavailable, "The stream cannot be reached", 2 * time.Second},
	{codeSourceHeld, http.StatusServiceUnavailable, "Records of this source are held back", 10 * time.Second},
	{codeStateBehind, http.StatusServiceUnavailable, "The newest state is not there yet", time.Second},
	{codeTokenUnverified, http.StatusServiceUnavailable, "The access token cannot be checked", 5 * time.Second},
}

// byCode is the row of a code.
func byCode(c code) failure {
	for _, f := range failures {
		if f.Code == c {
			return f
		}
	}
	return byCode(codeInternal)
}

// refusal is a request refused, with what its client should know. It never
// carries a submitted value.
type refusal struct {
	code      code
	detail    string           // a sentence
	problems  []record.Problem // one by one, at most 100
	total     int              // problems there are, when more than are listed
	retry     time.Duration    // better than the table's; 0: not known
	challenge string           // of WWW-Authenticate, besides the scheme and realm
	cause     error            // for the log, when it is our fault
}

func (r *refusal) Error() string { return string(r.code) + ": " + r.detail }
func (r *refusal) Unwrap() error { return r.cause }

func refuse(c code, detail string) *refusal { return &refusal{code: c, detail: detail} }

// refusalOf says how a failure is answered. What it does not know is our fault.
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

// streamRefusal knows the failures of the stream and of memory.
func streamRefusal(err error) *refusal {
	switch {
	case errors.Is(err, budget.ErrNoMemory):
		return refuse(codeOverloaded, "the memory for bodies in flight is used up")
	case errors.Is(err, flow.ErrFull):
		return refuse(codeStreamFull, "the stream holds as much as it may until older records are stored")
	case errors.Is(err, flow.ErrBusy):
		return refuse(codeStreamBusy, "more is on its way into the stream than it takes at once")
	case errors.Is(err, flow.ErrHeld):
		return refuse(codeSourceHeld, "the source is being moved to other lanes of the stream; send the request again")
	case errors.Is(err, flow.ErrKeyReused):
		return refuse(codeKeyReused, "the same Idempotency-Key was sent with another body a short time ago")
	case errors.Is(err, flow.ErrTooLarge):
		return refuse(codeRecordTooLarge, "a record is larger than the stream takes")
	case errors.Is(err, flow.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return refuse(codeStreamUnavailable, "whether the request was stored is not known; send it again, with the same Idempotency-Key if it had one")
	}
	return nil
}

// recordRefusal knows what may be wrong with records.
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
			of = codeTenantForbidden // and nothing else is wrong
		}
		return &refusal{
			code: of, detail: "nothing of the request was stored; errors says what is wrong with which record",
			problems: problems.Problems, total: problems.Total,
		}
	}
	return nil
}

// problem is the body of every refusal (RFC 9457).
type problem struct {
	Type     string  `json:"type"` // where /docs says what it means
	Title    string  `json:"title"`
	Status   int     `json:"status"`
	Detail   string  `json:"detail,omitempty"`
	Instance string  `json:"instance"` // urn:uuid: and the id of the request
	Code     code    `json:"code"`
	Errors   []wrong `json:"errors,omitempty"`
	Total    int     `json:"totalErrors,omitempty"` // when there are more than Errors lists
}

// wrong is one thing wrong with a body.
type wrong struct {
	Index   *int   `json:"index,omitempty"` // of the record; none in a document that is no list of records
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
	if err != nil { // strings and integers only: cannot happen
		panic(err)
	}
	h["Content-Type"] = problemType
	h["Cache-Control"] = noStore
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(row.Status)
	_, _ = w.Write(body) // the client is gone when this fails
}

// headers says in the header what programs look for there.
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
		h.Set("Connection", "close") // what is left of the body will not be read
	case codeUnsupportedEncoding:
		h.Set("Accept-Encoding", "gzip, zstd") // RFC 9110, 15.5.16
	}
}
