package api

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"

	"sluice/pkg/record"
)

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
