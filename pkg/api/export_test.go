package api

import (
	"io"
	"net/http"
	"strconv"
	"time"
)

// ReadLate delays each read of a body, as on a busy machine. Call it between Listen and Run.
func (s *Server) ReadLate(by time.Duration) {
	for i, p := range s.ports {
		s.ports[i].handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Body = lateBody{r.Body, by}
			p.handler.ServeHTTP(w, r)
		})
	}
}

// Idle counts the connections that wait for a request.
func (s *Server) Idle() (n int) {
	for _, p := range s.ports {
		n += p.listener.Idle()
	}
	return n
}

type lateBody struct {
	io.ReadCloser
	by time.Duration
}

func (l lateBody) Read(b []byte) (int, error) {
	time.Sleep(l.by)
	return l.ReadCloser.Read(b)
}

// Route is a route that tests compare with documents.
type Route struct{ Method, Path, Scope string }

// Routes lists the routes.
func (s *Server) Routes() []Route {
	var list []Route
	for _, r := range s.table() {
		list = append(list, Route{r.method, r.path, string(r.scope)})
	}
	return list
}

// Failure is a row of the table of failures.
type Failure struct {
	Code, Status, Title string
	Retries             bool
}

// Failures lists the refusals.
func Failures() []Failure {
	var list []Failure
	for _, f := range failures {
		list = append(list, Failure{string(f.Code), strconv.Itoa(f.Status), f.Title, f.Retry > 0})
	}
	return list
}

// Action reads the action of a bulk.
func Action(line []byte) (op string, index, id []byte, ok bool) {
	var it bulkItem
	ok = it.action(line)
	return it.op, it.index, it.id, ok
}
