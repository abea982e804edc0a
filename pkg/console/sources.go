package console

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"sluice/pkg/flow"
)

// Token describes an access token, without its secret.
type Token struct {
	Subject, Source string
	Scopes          []flow.Scope
	Tables, Tenants []string // nil: all
	Exclude         []flow.Exclusion
	Expires         time.Time
}

// partition summarizes the records of one partition of an engine.
type partition struct {
	Source   string
	Number   int64 // 0: records without a position
	Records  uint64
	Last     *int64
	LastTS   *time.Time
	Received time.Time
	Lanes    []uint16
}

// Behind is the age of the newest record with a timestamp, by the engine's clock.
func (p partition) Behind(now time.Time) time.Duration { return now.Sub(*p.LastTS) }

// partitionsQuery reads the aggregate table of sources, which has one row per partition
// and day.
const partitionsQuery = `SELECT source, partition_id, sum(rows) AS records,
    max(last_position) AS last_position,
    max(last_ts) AS last_ts, max(received_at) AS received_at, arraySort(groupUniqArray(lane)) AS lanes
FROM flow.sources
GROUP BY source, partition_id
ORDER BY source, partition_id
LIMIT 1000`

// SourceTokens changes the tokens of sources; changes apply within a second. said contains
// the new secret and how to configure the engine with it. It is shown once.
type SourceTokens interface {
	Add(name string) (said string, err error)
	Rotate(name string) (said string, err error) // earlier tokens stay valid for an hour
	Remove(name string) (said string, err error)
}

// engine is a source with its partitions.
type engine struct {
	Source
	Partitions []partition
}

type sourcesPage struct {
	Now     time.Time
	Engines []engine
	SQL     string
	Unread  error // why the partitions could not be read
	Unseen  error // why the lanes could not be read
	Tokens  []Token
	Rejects []rejectedClient
	Rules   []exclusion
	Changes bool   // whether tokens can be changed here
	Said    string // result of the change
	Failed  error  // why the change failed
}

// exclusion is a rule that discards records of a source.
type exclusion struct {
	Source, Rule string
	Active       bool // in an active token
	Records      uint64
}

// exclusions are the rules of tokens, and the rules that have excluded records since the
// apis started.
func (all reports) exclusions(tokens []Token) (rules []exclusion) {
	of := func(source, rule string) *exclusion {
		at := slices.IndexFunc(rules, func(e exclusion) bool { return e.Source == source && e.Rule == rule })
		if at < 0 {
			at, rules = len(rules), append(rules, exclusion{Source: source, Rule: rule})
		}
		return &rules[at]
	}
	for _, t := range tokens {
		for _, rule := range t.Exclude {
			of(t.Source, rule.String()).Active = true
		}
	}
	for _, r := range all {
		for _, m := range r.metrics[excludedMetric] {
			of(m.labels["source"], m.labels["rule"]).Records += uint64(m.value)
		}
	}
	slices.SortFunc(rules, func(a, b exclusion) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Rule, b.Rule))
	})
	return rules
}

// LastSeen is the time of the last received record; zero if there is none.
func (e engine) LastSeen() (last time.Time) {
	for _, p := range e.Partitions {
		if p.Received.After(last) {
			last = p.Received
		}
	}
	return last
}

// changeSource adds, rotates or removes the tokens of a source.
func (s *Server) changeSource(w http.ResponseWriter, r *http.Request, who *session) error {
	if s.sourceTokens == nil {
		return refuse(http.StatusNotFound, "This console cannot change tokens: run sluice source add NAME --tokens FILE beside the token file.")
	}
	if err := who.whole("Sources and tokens"); err != nil {
		return err
	}
	name, page := strings.TrimSpace(r.FormValue("name")), s.sourcesData(r, who)
	change := map[string]func(string) (string, error){"add": s.sourceTokens.Add, "rotate": s.sourceTokens.Rotate, "remove": s.sourceTokens.Remove}[r.FormValue("do")]
	switch {
	case change == nil || name == "":
		return refuse(http.StatusBadRequest, "The name of the source is missing: type it.")
	case r.FormValue("do") == "remove" && r.FormValue("sure") == "":
		page.Failed = errors.New("tick the box to confirm: an engine without a token cannot post")
	default:
		page.Said, page.Failed = change(name)
		s.log.Info("console: tokens of a source changed", "subject", who.Subject(), "source", name, "change", r.FormValue("do"), "failed", page.Failed != nil)
	}
	return s.show(w, r, who, "sources", "Sources", page)
}

func (s *Server) sources(w http.ResponseWriter, r *http.Request, who *session) error {
	if err := who.whole("Sources and tokens"); err != nil {
		return err
	}
	return s.show(w, r, who, "sources", "Sources", s.sourcesData(r, who))
}

func (s *Server) sourcesData(r *http.Request, who *session) *sourcesPage {
	page := &sourcesPage{Now: who.at, Tokens: s.tokens(), Changes: s.sourceTokens != nil}
	slices.SortFunc(page.Tokens, func(a, b Token) int { return cmp.Or(cmp.Compare(a.Subject, b.Subject), a.Expires.Compare(b.Expires)) })
	engines := map[string]*engine{}
	of := func(name string) *engine {
		if engines[name] == nil {
			engines[name] = &engine{Source: Source{Name: name}}
		}
		return engines[name]
	}
	now, _ := s.watch.latest(r.Context())
	page.Unseen, page.Rejects, page.Rules = now.NATS, now.Programs.rejects(), now.Programs.exclusions(page.Tokens)
	for _, source := range now.Standing.Sources {
		of(source.Name).Source = source
	}
	partitions := rowsOf[partition](r.Context(), s.db, partitionsQuery)
	page.Unread, page.SQL = partitions.Err, partitions.SQL
	for _, p := range partitions.Rows {
		e := of(p.Source)
		e.Partitions = append(e.Partitions, p)
	}
	for _, e := range engines {
		page.Engines = append(page.Engines, *e)
	}
	slices.SortFunc(page.Engines, func(a, b engine) int { return cmp.Compare(a.Name, b.Name) })
	return page
}
