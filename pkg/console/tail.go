package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

type recordsPage struct {
	Filters filters
	New     string // path to poll for new records
	Every   int64  // ms between polls
}

// maxTailed is the maximum number of records in a response.
const maxTailed = 50

func tailFilters(r *http.Request) filters {
	return filtersOf(r,
		filter{Name: "source", Label: "Source", column: "source"},
		filter{Name: "id", Label: "Process", column: "bpmn_process_id"},
		filter{Name: "version", Label: "Version", Digits: true, Size: 4, column: "version", more: true},
		filter{Name: "tenant", Label: "Tenant", Size: 8, column: "tenant_id", more: true},
		filter{Name: "type", Label: "Type, such as INCIDENT", column: "value_type"},
		filter{Name: "intent", Label: "Intent, such as CREATED", column: "intent"},
		filter{Name: "instance", Label: "Instance", column: "process_instance_key"},
	)
}

// tail is the page of newly stored records.
func (s *Server) tail(w http.ResponseWriter, r *http.Request, who *session) error {
	f := tailFilters(r)
	return s.show(w, r, who, "records", "Records", recordsPage{f, f.Link("/records/new"), s.cfg.Every.Milliseconds()})
}

// partDelay bounds the time between a part's modification_time and the visibility of its
// rows.
const partDelay = 5 * time.Second

// tailPlace is the progress of a browser, which sends it back with the next request.
type tailPlace struct {
	At    int64           `json:"at"` // Unix seconds of the last request
	Lanes map[int]reached `json:"lanes"`
}

// reached is the progress on one lane.
type reached struct {
	Incarnation uint64 `json:"incarnation"`
	Message     uint64 `json:"message"`
}

// tailSQL reads records stored since the last request: rows of a lane become visible in
// the order of its messages. $recent selects the parts that can contain them.
const tailSQL = `
SELECT ts, source, value_type, record_type, intent, bpmn_process_id, process_instance_key, element_id, key, id, lane, incarnation, stream_seq,
    substringUTF8(multiIf(error_message != '', error_message, rejection_reason != '', rejection_reason, job_type), 1, 300) AS note
FROM flow.records
WHERE $recent AND ($since) AND $condition AND $tenants
ORDER BY stream_seq DESC, stream_idx DESC
LIMIT $limit`

// tailRow is a newly stored record, in the column order of tailSQL.
type tailRow struct {
	At          time.Time `json:"at"`
	Source      string    `json:"source"`
	Type        string    `json:"type"`
	Kind        string    `json:"kind"`
	Intent      string    `json:"intent"`
	Process     string    `json:"process"`
	Instance    string    `json:"instance"`
	Element     string    `json:"element"`
	Key         int64     `json:"-"`
	ID          string    `json:"id"`
	Lane        uint16    `json:"-"`
	Incarnation uint64    `json:"-"`
	Message     uint64    `json:"-"`
	Note        string    `json:"note"`

	Path string `json:"path"` // page of the record
}

// recentParts is a condition on the parts that can have new rows: those written in the
// last $seconds. In a cluster the parts of other servers are not visible, so there it
// selects records of the last minutes.
func (s *Server) recentParts(ctx context.Context) (string, error) {
	if known := s.recent.Load(); known != nil {
		return *known, nil
	}
	var engine string
	if err := one(ctx, s.db, []any{&engine}, "SELECT engine FROM system.tables WHERE database = 'flow' AND name = 'records'"); err != nil {
		return "", err
	}
	condition := "_part IN (SELECT name FROM system.parts WHERE database = 'flow' AND table = 'records' AND active AND modification_time >= now() - $seconds)"
	if !strings.HasSuffix(engine, "MergeTree") {
		condition = "ts >= now() - toIntervalMinute(10)"
	}
	s.recent.Store(&condition)
	return condition, nil
}

// newRecords is the response to a poll.
type newRecords struct {
	Rows  []tailRow `json:"rows"`
	More  bool      `json:"more"`            // more were stored than Rows has
	Err   string    `json:"error,omitempty"` // why Rows is empty
	Place string    `json:"place"`           // to send with the next request
}

// tailed returns the records stored since the browser's last request. All browsers share
// one query per Config.Every, in turn.
func (s *Server) tailed(w http.ResponseWriter, r *http.Request, who *session) error {
	place, response := r.FormValue("place"), newRecords{}
	var at tailPlace
	if place != "" && json.Unmarshal([]byte(place), &at) != nil {
		return refuse(http.StatusBadRequest, "The place %q is invalid: reload the page.", place)
	}
	if s.turns.Wait(r.Context()) == nil { // else too many browsers wait: this one retries
		if err := s.stored(r.Context(), who, tailFilters(r), &at, &response); err != nil {
			response.Err = err.Error()
		} else if text, err := json.Marshal(at); err == nil {
			place = string(text)
		}
	}
	response.Place = place
	text, err := json.Marshal(response)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // the browser is gone when this fails
	return nil
}

// maxTail is the maximum time between requests; after a longer pause the tail restarts.
const maxTail = 10 * time.Minute

// stored reads the records stored since at, and advances at. It follows a new lane from
// its last stored message.
func (s *Server) stored(ctx context.Context, who *session, f filters, at *tailPlace, response *newRecords) error {
	recent, err := s.recentParts(ctx)
	if err != nil {
		return err
	}
	now, _ := s.watch.latest(ctx)
	if now.NATS != nil {
		return fmt.Errorf("the lanes cannot be read: %w", now.NATS)
	}
	asked, age := time.Now(), partDelay
	if at.At > 0 {
		age += time.Since(time.Unix(at.At, 0))
	}
	if at.Lanes == nil || age < 0 || age > maxTail {
		at.Lanes, age = map[int]reached{}, partDelay
	}
	var since []string
	for _, lane := range now.Standing.Lanes {
		if last, known := at.Lanes[lane.Number]; !known || last.Incarnation != lane.Position.Incarnation() {
			at.Lanes[lane.Number] = reached{lane.Position.Incarnation(), lane.Position.Done}
		}
		since = append(since, fmt.Sprintf("lane = %d AND incarnation = %d AND stream_seq > %d", lane.Number, at.Lanes[lane.Number].Incarnation, at.Lanes[lane.Number].Message))
	}
	if len(since) == 0 {
		return nil
	}
	found := rowsOf[tailRow](ctx, s.db, fill(tailSQL, "recent", fill(recent, "seconds", itoa(int64(age.Seconds())+2)),
		"since", strings.Join(since, " OR "), "condition", f.Condition(), "tenants", who.only("tenant_id"), "limit", itoa(maxTailed+1)))
	if found.Err != nil {
		return found.Err
	}
	at.At = asked.Unix()
	for i := range found.Rows {
		row := &found.Rows[i]
		if at.Lanes[int(row.Lane)].Message < row.Message {
			at.Lanes[int(row.Lane)] = reached{row.Incarnation, row.Message}
		}
		row.Path = link("/record", "source", row.Source, "instance", row.Instance, "day", row.At.UTC().Format(time.DateOnly), "id", row.ID, "key", itoa(row.Key))
	}
	response.Rows, response.More = found.Rows, len(found.Rows) > maxTailed
	response.Rows = response.Rows[:min(len(response.Rows), maxTailed)]
	return nil
}
