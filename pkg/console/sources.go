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

// Token is an access token as people may see it: without the token.
type Token struct {
	Subject, Source string
	Scopes          []flow.Scope
	Tables, Tenants []string // nil: all
	Exclude         []flow.Exclusion
	Expires         time.Time
}

// partition is what one partition of an engine has sent.
type partition struct {
	Source   string
	Number   int64 // 0: records that are not known by a position
	Records  uint64
	Last     *int64
	LastTS   *time.Time
	Received time.Time
	Lanes    []uint16
}

// Behind is how old the newest record is that has a time, by the engine's own clock.
func (p partition) Behind(now time.Time) time.Duration { return now.Sub(*p.LastTS) }

// partitionsQuery reads the fold of sources alone: it has one row for each day
// of a partition, however many records there are.
const partitionsQuery = `SELECT source, partition_id, sum(rows) AS records,
    max(last_position) AS last_position,
    max(last_ts) AS last_ts, max(received_at) AS received_at, arraySort(groupUniqArray(lane)) AS lanes
FROM flow.sources
GROUP BY source, partition_id
ORDER BY source, partition_id
LIMIT 1000`

// SourceTokens changes the tokens of engines, which takes effect within a second. What it
// says has the secret of a new token and how the engine is told it: it is shown once.
type SourceTokens interface {
	Add(name string) (said string, err error)
	Rotate(name string) (said string, err error) // the former ones are accepted for another hour
	Remove(name string) (said string, err error)
}

// engine is a source: where its records go, and what came of it.
type engine struct {
	Source
	Partitions []partition
}

type sourcesPage struct {
	Now     time.Time
	Engines []engine
	SQL     string
	Unread  error // why the partitions are not known
	Unseen  error // why the lanes are not known
	Tokens  []Token
	Rejects []rejectedClient
	Rules   []exclusion
	Changes bool   // tokens can be changed here
	Said    string // of the change that was made
	Failed  error  // why it was not
}

// exclusion is a rule by which records of a source are not kept.
type exclusion struct {
	Source, Rule string
	Active       bool // in the token file
	Records      uint64
}

// exclusions are the rules of tokens, and those by which apis have excluded records since
// they started.
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

// LastSeen is when a record of the source was received last; the zero time when none was.
func (e engine) LastSeen() (last time.Time) {
	for _, p := range e.Partitions {
		if p.Received.After(last) {
			last = p.Received
		}
	}
	return last
}

// changeSource makes, renews or revokes the tokens of an engine.
func (s *Server) changeSource(w http.ResponseWriter, r *http.Request, who *session) error {
	if s.sourceTokens == nil {
		return refuse(http.StatusNotFound, "The tokens are changed where the token file is: sluice source add NAME --tokens FILE.")
	}
	if err := who.whole("Sources and tokens"); err != nil {
		return err
	}
	name, page := strings.TrimSpace(r.FormValue("name")), s.sourcesData(r, who)
	change := map[string]func(string) (string, error){"add": s.sourceTokens.Add, "rotate": s.sourceTokens.Rotate, "remove": s.sourceTokens.Remove}[r.FormValue("do")]
	switch {
	case change == nil || name == "":
		return refuse(http.StatusBadRequest, "Which source? Type its name.")
	case r.FormValue("do") == "remove" && r.FormValue("sure") == "":
		page.Failed = errors.New("tick the box: an engine whose tokens are revoked cannot post any more")
	default:
		page.Said, page.Failed = change(name)
		s.log.Info("tokens of a source were changed at the console", "subject", who.Subject(), "source", name, "change", r.FormValue("do"), "failed", page.Failed != nil)
	}
	return s.show(w, r, who, "sources", "Sources", page)
}

// sources lists engines with their partitions, and the tokens there are.
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
