package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// figures are what is live on a page, ready to be read, by a name that the page
// gives its place.
type figures map[string]string

// nowPage is what pages/now.html shows.
type nowPage struct {
	V        figures
	Shape    string
	Problems []problem
	Lanes    []Lane
	Programs reports
	Database error
	NATS     error
	RowsSQL  string
}

// now is the first page: what goes on, and what needs a person.
func (s *Server) now(w http.ResponseWriter, r *http.Request, who *session) error {
	if who.Limited() {
		http.Redirect(w, r, "/processes", http.StatusSeeOther)
		return nil
	}
	page, err := s.nowData(r)
	if err != nil {
		return err
	}
	return s.show(w, r, who, "now", "Now", page)
}

func (s *Server) nowData(r *http.Request) (nowPage, error) {
	look, points, err := s.watch.state(r.Context())
	if err != nil {
		return nowPage{}, fmt.Errorf("nothing has been looked at yet: %w", err)
	}
	problems := s.watch.problems(look)
	return nowPage{
		V: s.watch.figures(look, points, problems), Shape: shapeOf(look, problems), Problems: problems,
		Lanes: look.Standing.Lanes, Programs: look.Programs, Database: look.Database, NATS: look.NATS,
		RowsSQL: rowsQuery,
	}, nil
}

// figures are all numbers of the page at one look.
func (w *watch) figures(s *sample, points []point, problems []problem) figures {
	p := points[len(points)-1]
	v := figures{"at": s.At.UTC().Format(time.RFC3339Nano)}
	put := func(key string, known bool, text string) {
		if !known {
			text = unknown
		}
		v[key] = text
	}
	put("accepted.rate", p.HasAccepted, number(p.acceptedRate))
	put("accepted.sum", p.HasAccepted, number(p.Accepted))
	for name, f := range map[string]struct{ rate, sum float64 }{
		"stored": {p.storedRate, p.Stored}, "repeated": {p.repeatedRate, p.Repeated}, "dead": {p.deadRate, p.Dead},
	} {
		put(name+".rate", p.HasStored, number(f.rate))
		put(name+".sum", p.HasStored, number(f.sum))
	}
	put("waiting.sum", p.HasStored, number(p.Waiting))
	put("dead.kept", p.HasStored, number(s.Standing.Dead.Letters))
	for name, seconds := range map[string]float64{"fresh.p50": p.freshMedian, "fresh.p99": p.freshP99, "ack.p50": p.ackMedian, "ack.p99": p.ackP99} {
		text := "–" // nothing in the last minute
		if seconds >= 0 {
			text = span(time.Duration(seconds * float64(time.Second)))
		}
		v[name] = text
	}
	put("database.rows", s.Database == nil, number(s.Rows))
	put("database.took", s.Database == nil, span(s.Took))
	put("database.version", s.Database == nil, s.Version)
	put("nats.took", s.NATS == nil, span(s.Answered))
	w.laneFigures(v, s)
	for _, found := range problems {
		v["problem."+found.Key] = found.Text
	}
	return v
}

const unknown = "not available"

// laneFigures are the numbers of each lane.
func (w *watch) laneFigures(v figures, s *sample) {
	states := s.Programs.highest(laneStateMetric, "lane")
	ages := s.Programs.highest(laneAgeMetric, "lane")
	for _, lane := range s.Standing.Lanes {
		at, label := fmt.Sprintf("lane.%d.", lane.Number), strconv.Itoa(lane.Number)
		v[at+"waiting"] = number(lane.Waiting)
		v[at+"bytes"] = byteSize(lane.WaitingBytes)
		v[at+"age"] = unknown
		if age, ok := ages[label]; ok {
			v[at+"age"] = span(time.Duration(age * float64(time.Second)).Round(time.Millisecond))
		}
		v[at+"state"] = laneState(lane, states)
		v[at+"owner"] = lane.Position.Owner
		if lane.Position.Owner == "" {
			v[at+"owner"] = "none"
		}
		v[at+"disk"] = fmt.Sprintf("%s of %s", byteSize(lane.Bytes), byteSize(lane.MaxBytes))
		v[at+"share"] = fmt.Sprintf("%.1f", share(float64(lane.Bytes), float64(lane.MaxBytes)))
		v[at+"full"] = w.fullText(lane)
	}
}

func share(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return min(100, 100*part/whole)
}

// laneState is what a lane does, in a word or two.
func laneState(lane Lane, states map[string]float64) string {
	state, known := states[strconv.Itoa(lane.Number)]
	switch {
	case lane.Position.Held(time.Now()):
		return "held by " + lane.Position.Hold.By
	case !known && lane.Position.Owner == "":
		return "no ingester"
	case !known:
		return unknown
	case state == 2:
		return "halted"
	case state == 1:
		return "trying again"
	}
	return "works"
}

// fullIn is when what waits fills the disk budget of a lane at this rate: what is
// stored gives way to it. ok is false when it does not grow.
func (w *watch) fullIn(lane Lane) (d time.Duration, ok bool) {
	w.mu.Lock()
	rate, known := w.growth(lane.Number)
	w.mu.Unlock()
	if !known || rate < 1 || lane.MaxBytes <= 0 {
		return 0, false
	}
	seconds := (float64(lane.MaxBytes) - float64(lane.WaitingBytes)) / rate
	if seconds > (10 * 365 * 24 * time.Hour).Seconds() {
		return 0, false
	}
	return time.Duration(max(0, seconds) * float64(time.Second)), true
}

func (w *watch) fullText(lane Lane) string {
	if d, ok := w.fullIn(lane); ok {
		return "in " + span(d)
	}
	return "not at this rate"
}

// shapeOf changes when the page needs other rows, and not only other numbers.
func shapeOf(s *sample, problems []problem) string {
	var b strings.Builder
	for _, lane := range s.Standing.Lanes {
		fmt.Fprintf(&b, "%d@%d ", lane.Number, lane.Position.Incarnation)
	}
	for _, p := range problems {
		b.WriteString(p.Key + " ")
	}
	fmt.Fprintf(&b, "%t %t", s.Database == nil, s.NATS == nil)
	for _, r := range s.Programs {
		fmt.Fprintf(&b, " %t", r.Err == nil)
	}
	return b.String()
}

// message is what browsers are told of a look: the same bytes for all of them.
func (w *watch) message(s *sample, points []point) []byte {
	s.telling.Do(func() {
		problems := w.problems(s)
		p := points[len(points)-1]
		text, err := json.Marshal(struct {
			Shape string     `json:"shape"`
			V     figures    `json:"v"`
			P     [4]float64 `json:"p"`
		}{shapeOf(s, problems), w.figures(s, points, problems), seriesAt(p)})
		if err != nil {
			w.log.Error("what is live cannot be told", "error", err) // only numbers and texts: never
			return
		}
		var b bytes.Buffer
		fmt.Fprintf(&b, "event: now\ndata: %s\n\n", text)
		s.told = b.Bytes()
	})
	return s.told
}

// seriesAt is a point as the chart takes it: time, accepted and stored per
// second, waiting.
func seriesAt(p point) [4]float64 {
	return [4]float64{float64(p.At.UnixMilli()) / 1000, p.acceptedRate, p.storedRate, p.Waiting}
}

// nowEvents tells a browser once a second what is live, as server-sent events,
// until it goes, its session ends, or the console does.
func (s *Server) nowEvents(w http.ResponseWriter, r *http.Request, who *session) error {
	if err := who.whole("The numbers of this page"); err != nil {
		return err
	}
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Time{}); err != nil { // it was for the request
		return err
	}
	w.Header().Set("Content-Type", "text/event-stream")
	leave := s.watch.join()
	defer leave()
	ctx := r.Context()
	var told *sample
	for {
		now, points, err := s.watch.state(ctx)
		if err != nil {
			return nil // the browser has gone
		}
		if told != now {
			if who, err := s.visitor(r); err == nil && (who == nil || who.Limited()) { // of a token that was changed, too
				_, _ = w.Write([]byte("event: end\ndata: {}\n\n"))
				return nil
			}
			_ = control.SetWriteDeadline(time.Now().Add(10 * time.Second))
			if _, err := w.Write(s.watch.message(now, points)); err != nil {
				return nil
			}
			if err := control.Flush(); err != nil {
				return nil
			}
			told = now
		}
		select {
		case <-s.watch.after(now):
		case <-ctx.Done():
			return nil
		case <-s.draining.Done():
			return nil
		}
	}
}

// chart is what a chart of the page is drawn of: x in seconds since 1970 and
// values of the same length.
type chart struct {
	X      []float64 `json:"x"`
	Series []series  `json:"series"`
}

type series struct {
	Label  string    `json:"label"`
	Values []float64 `json:"values"`
}

func (s *Server) nowSeries(w http.ResponseWriter, r *http.Request, who *session) error {
	if err := who.whole("The numbers of this page"); err != nil {
		return err
	}
	_, points, err := s.watch.state(r.Context())
	if err != nil {
		return err
	}
	c := chart{Series: []series{{Label: "accepted/s"}, {Label: "stored/s"}, {Label: "waiting messages"}}}
	for _, p := range points {
		at := seriesAt(p)
		c.X = append(c.X, at[0])
		for i := range c.Series {
			c.Series[i].Values = append(c.Series[i].Values, at[i+1])
		}
	}
	return answerJSON(w, c)
}

func answerJSON(w http.ResponseWriter, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // the browser is gone when this fails
	return nil
}

// howPage explains the numbers: what a look has found, and every metric as the
// programs show it now.
type howPage struct {
	Look     *sample
	Programs reports
	Metrics  []howMetric
}

type howMetric struct {
	Name, Help string
	Series     []howSeries
}

type howSeries struct{ Labels, Value string }

// how is where the numbers come from: what each metric means, and its value.
func (s *Server) how(w http.ResponseWriter, r *http.Request, who *session) error {
	if err := who.whole("Metrics"); err != nil {
		return err
	}
	look, _, err := s.watch.state(r.Context())
	if err != nil {
		return err
	}
	page := howPage{Look: look, Programs: s.watch.ask(r.Context())}
	at := map[string]int{}
	for _, program := range page.Programs {
		for name, family := range program.metrics {
			if !strings.HasPrefix(name, "sluice_") {
				continue
			}
			i, known := at[name]
			if !known {
				i, at[name] = len(page.Metrics), len(page.Metrics)
				page.Metrics = append(page.Metrics, howMetric{Name: name, Help: family.GetHelp()})
			}
			for _, m := range family.GetMetric() {
				var labels []string
				for _, l := range m.GetLabel() {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
				value := number(valueOf(m))
				if m.Histogram != nil {
					value = fmt.Sprintf("%s values, in sum %.6g", number(m.Histogram.GetSampleCount()), m.Histogram.GetSampleSum())
				}
				page.Metrics[i].Series = append(page.Metrics[i].Series, howSeries{strings.Join(labels, ", "), value})
			}
		}
	}
	slices.SortFunc(page.Metrics, func(a, b howMetric) int { return strings.Compare(a.Name, b.Name) })
	return s.show(w, r, who, "how", "Where the numbers come from", page)
}
