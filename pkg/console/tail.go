package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// tailed is which records a tail shows.
type tailed struct{ Source, Process, Type, Intent, Instance string }

// recordsPage is what pages/records.html shows.
type recordsPage struct {
	tailed
	Events string // where the live ones come from
}

// mostTailed is how many records a browser is told of at a time.
const mostTailed = 50

func tailedOf(r *http.Request) tailed {
	of := func(name string) string { return strings.TrimSpace(r.FormValue(name)) }
	return tailed{of("source"), of("id"), of("type"), of("intent"), of("instance")}
}

// tail is the page of the records that are stored now.
func (s *Server) tail(w http.ResponseWriter, r *http.Request, who *session) error {
	t := tailedOf(r)
	return s.show(w, r, who, "records", "Records", recordsPage{t,
		link("/records/events", "source", t.Source, "id", t.Process, "type", t.Type, "intent", t.Intent, "instance", t.Instance)})
}

// condition leaves what the fields of the page name.
func (t tailed) condition() string {
	all := []string{"1"}
	for column, value := range map[string]string{
		"source": t.Source, "bpmn_process_id": t.Process, "value_type": t.Type, "intent": t.Intent, "process_instance_key": t.Instance,
	} {
		if value != "" {
			all = append(all, column+" = "+quote(value))
		}
	}
	return strings.Join(all, " AND ")
}

// partDelay is how long ago a part may have been written, as ClickHouse says, whose
// rows were not there at the look before.
const partDelay = 5 * time.Second

// reached is how far a tail has got on a lane.
type reached struct{ incarnation, message uint64 }

// tailSQL reads what was stored since: rows of a lane become visible in the order
// of its messages. $recent leaves the parts in which they can be.
const tailSQL = `
SELECT ts, source, value_type, record_type, intent, bpmn_process_id, process_instance_key, element_id, key, id, lane, incarnation, stream_seq,
    substringUTF8(multiIf(error_message != '', error_message, rejection_reason != '', rejection_reason, job_type), 1, 300) AS note
FROM flow.records
WHERE $recent AND ($since) AND $condition AND $tenants
ORDER BY stream_seq DESC, stream_idx DESC
LIMIT $limit`

// tailRow is a record that was stored just now.
type tailRow struct {
	At       time.Time `json:"at"`
	Source   string    `json:"source"`
	Type     string    `json:"type"`
	Kind     string    `json:"kind"`
	Intent   string    `json:"intent"`
	Process  string    `json:"process"`
	Instance string    `json:"instance"`
	Element  string    `json:"element"`
	Key      int64     `json:"-"`
	ID       string    `json:"id"`
	Note     string    `json:"note"`
	Path     string    `json:"path"`

	lane        uint16
	incarnation uint64
	message     uint64
}

// recentParts is a condition on the parts that may have new rows: those that were
// written $seconds ago or later. Of a cluster the parts of other servers are not
// known, so there it is the records of the last minutes.
func (s *Server) recentParts(ctx context.Context) (string, error) {
	var engine string
	if err := one(ctx, s.db, []any{&engine}, "SELECT engine FROM system.tables WHERE database = 'flow' AND name = 'records'"); err != nil {
		return "", err
	}
	if !strings.HasSuffix(engine, "MergeTree") {
		return "ts >= now() - toIntervalMinute(10)", nil
	}
	return "_part IN (SELECT name FROM system.parts WHERE database = 'flow' AND table = 'records' AND active AND modification_time >= now() - $seconds)", nil
}

// tailEvents tells a browser of the records that are stored, until it goes. All
// browsers together ask ClickHouse once a second.
func (s *Server) tailEvents(w http.ResponseWriter, r *http.Request, who *session) error {
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Time{}); err != nil { // it was for the request
		return err
	}
	of := tailedOf(r)
	recent, err := s.recentParts(r.Context())
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/event-stream")
	defer s.watch.join()()
	s.tails.Add(1)
	defer s.tails.Add(-1)
	at := map[int]reached{}
	last := time.Now().Add(-partDelay)
	for {
		switch now, err := s.visitor(r); {
		case err != nil: // it cannot be told: nothing is told meanwhile but what was
		case now == nil:
			_, _ = w.Write([]byte("event: end\ndata: {}\n\n"))
			return nil
		default:
			who = now // its tenants may have changed
		}
		since := time.Since(last) + partDelay
		last = time.Now()
		told := s.stored(r.Context(), who, of, fill(recent, "seconds", itoa(int64(since.Seconds())+1)), at)
		text, err := json.Marshal(told)
		if err != nil {
			return nil // only texts and numbers: never
		}
		_ = control.SetWriteDeadline(time.Now().Add(10 * time.Second))
		if _, err := fmt.Fprintf(w, "event: records\ndata: %s\n\n", text); err != nil {
			return nil // the browser has gone
		}
		if err := control.Flush(); err != nil {
			return nil
		}
		timer := time.NewTimer(s.cfg.Every * time.Duration(min(max(s.tails.Load(), 1), 20)))
		select {
		case <-timer.C:
			continue
		case <-r.Context().Done():
		case <-s.draining.Done():
		}
		timer.Stop()
		return nil
	}
}

// toldRecords is one message to a browser.
type toldRecords struct {
	Rows []tailRow `json:"rows"`
	More bool      `json:"more"` // more were stored than are told
	Err  string    `json:"error,omitempty"`
}

// stored is what was stored since at, which it moves on. A lane that was not seen
// before is followed from its position on.
func (s *Server) stored(ctx context.Context, who *session, of tailed, recent string, at map[int]reached) (told toldRecords) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Answer)
	defer cancel()
	look, _, err := s.watch.state(ctx)
	if err == nil {
		err = look.NATS
	}
	if err != nil {
		return toldRecords{Err: "the lanes cannot be read: " + err.Error()}
	}
	var since []string
	for _, lane := range look.Standing.Lanes {
		if last, known := at[lane.Number]; !known || last.incarnation != lane.Position.Incarnation {
			at[lane.Number] = reached{lane.Position.Incarnation, lane.Position.Done}
		}
		since = append(since, fmt.Sprintf("lane = %d AND incarnation = %d AND stream_seq > %d", lane.Number, at[lane.Number].incarnation, at[lane.Number].message))
	}
	if len(since) == 0 {
		return told
	}
	sql := fill(tailSQL, "recent", recent, "since", strings.Join(since, " OR "), "condition", of.condition(), "tenants", who.only("tenant_id"), "limit", itoa(mostTailed+1))
	rows, err := each(ctx, s.db, func(r *tailRow) []any {
		return []any{&r.At, &r.Source, &r.Type, &r.Kind, &r.Intent, &r.Process, &r.Instance, &r.Element, &r.Key, &r.ID, &r.lane, &r.incarnation, &r.message, &r.Note}
	}, sql)
	if err != nil {
		return toldRecords{Err: err.Error()}
	}
	for i := range rows {
		row := &rows[i]
		if last := at[int(row.lane)]; last.message < row.message {
			at[int(row.lane)] = reached{row.incarnation, row.message}
		}
		row.Path = link("/record", "source", row.Source, "instance", row.Instance, "day", row.At.UTC().Format(time.DateOnly), "id", row.ID, "key", itoa(row.Key))
	}
	if told.More = len(rows) > mostTailed; told.More {
		rows = rows[:mostTailed]
	}
	told.Rows = rows
	return told
}
