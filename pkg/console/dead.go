package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/pkg/flow"
)

// Letters are the dead letters. The real one wraps *stream.DeadLetters in cmd. Replay
// and Drop are idempotent: a letter is replayed once, however often Replay is called.
// Both record the user's name.
type Letters interface {
	List(ctx context.Context) iter.Seq2[Letter, error] // without bodies, oldest first
	Get(ctx context.Context, number uint64) (l Letter, found bool, err error)
	Replay(ctx context.Context, by string, l Letter) (before bool, err error)
	Drop(ctx context.Context, by string, l Letter) error
	Settled(ctx context.Context) iter.Seq2[Settled, error] // oldest first
}

// Letter is one dead-lettered record, or one whole message.
type Letter struct {
	Number uint64
	At     time.Time
	flow.Dead
}

// What describes the dead-lettered record or message.
func (l Letter) What() string {
	switch {
	case l.Message.Lane < 0:
		return "posted by Elasticsearch's protocol"
	case l.Index < 0:
		return fmt.Sprintf("all of message %d of lane %d", l.Message.Seq, l.Message.Lane)
	}
	return fmt.Sprintf("record %d of message %d of lane %d", l.Index, l.Message.Seq, l.Message.Lane)
}

// Settled is the outcome of a letter and the user who replayed or dropped it.
type Settled struct {
	At                  time.Time
	By, Code, Outcome   string
	Lane                int
	Incarnation, Number uint64 // Number is the sequence of the message in its lane
	Index               int
}

const (
	maxLetters  = 20_000 // read for a page
	shownAtOnce = 200    // listed on a page
	maxAtOnce   = 5_000  // replayed or dropped by one form
)

// letterGroup counts the letters of one code.
type letterGroup struct {
	Code, Reason string // Reason of the newest letter
	Letters      int
	First, Last  time.Time
}

type deadPage struct {
	Filters filters
	Groups  []letterGroup
	Letters []Letter // the newest that match the filter
	Matched int      // letters that match the filter
	Upto    uint64   // number of the newest letter read
	More    bool     // more letters exist than were read
	Settled []Settled
	Unknown error // why Settled could not be read
}

func letterFilters(r *http.Request) (filters, error) {
	f := filtersOf(r, filter{Name: "code", Label: "Code"}, filter{Name: "source", Label: "Source"}, filter{Name: "lane", Label: "Lane", Digits: true})
	return f, f.Check()
}

// takenBy reports whether a letter matches the filters.
func (l Letter) takenBy(f filters) bool {
	code, source, lane := f.Value("code"), f.Value("source"), f.Value("lane")
	return (code == "" || l.Code == code) && (source == "" || l.Message.Source == source) && (lane == "" || strconv.Itoa(l.Message.Lane) == lane)
}

func (s *Server) dead(w http.ResponseWriter, r *http.Request, who *session) error {
	if err := who.whole("Dead letters"); err != nil {
		return err
	}
	filter, err := letterFilters(r)
	if err != nil {
		return err
	}
	page := deadPage{Filters: filter}
	groups := map[string]*letterGroup{}
	seen := 0
	for l, err := range s.letters.List(r.Context()) {
		if err != nil {
			return err
		}
		if seen++; seen > maxLetters {
			page.More = true
			break
		}
		page.Upto = l.Number
		g := groups[l.Code]
		if g == nil {
			g = &letterGroup{Code: l.Code, First: l.At}
			groups[l.Code] = g
		}
		g.Letters, g.Reason, g.Last = g.Letters+1, l.Reason, l.At
		if !l.takenBy(filter) {
			continue
		}
		page.Matched++
		page.Letters = append(page.Letters, l)
		if len(page.Letters) > 2*shownAtOnce {
			page.Letters = slices.Delete(page.Letters, 0, len(page.Letters)-shownAtOnce)
		}
	}
	slices.Reverse(page.Letters)
	page.Letters = page.Letters[:min(len(page.Letters), shownAtOnce)]
	for _, g := range groups {
		page.Groups = append(page.Groups, *g)
	}
	slices.SortFunc(page.Groups, func(a, b letterGroup) int {
		return cmp.Or(cmp.Compare(b.Letters, a.Letters), strings.Compare(a.Code, b.Code))
	})
	page.Settled, page.Unknown = s.lastSettled(r.Context())
	return s.show(w, r, who, "dead", "Dead letters", page)
}

// lastSettled are the newest outcomes of letters, newest first.
func (s *Server) lastSettled(ctx context.Context) (last []Settled, err error) {
	const limit = 50
	for note, err := range s.letters.Settled(ctx) {
		if err != nil {
			return nil, err
		}
		if last = append(last, note); len(last) > 2*limit {
			last = slices.Delete(last, 0, len(last)-limit)
		}
	}
	slices.Reverse(last)
	return last[:min(len(last), limit)], nil
}

// letterOf reads the letter that the URL names.
func (s *Server) letterOf(r *http.Request) (Letter, error) {
	number, err := strconv.ParseUint(r.PathValue("number"), 10, 64)
	if err != nil {
		return Letter{}, refuse(http.StatusNotFound, "%q is not the number of a dead letter.", r.PathValue("number"))
	}
	l, found, err := s.letters.Get(r.Context(), number)
	if err == nil && !found {
		err = refuse(http.StatusNotFound, "Dead letter %d does not exist: it was replayed or dropped.", number)
	}
	return l, err
}

type letterPage struct {
	Letter Letter
	Bytes  placedBytes
}

// letter shows one dead letter and marks the rejected members.
func (s *Server) letter(w http.ResponseWriter, r *http.Request, who *session) error {
	if err := who.whole("Dead letters"); err != nil {
		return err
	}
	l, err := s.letterOf(r)
	if err != nil {
		return err
	}
	return s.show(w, r, who, "letter", fmt.Sprintf("Dead letter %d", l.Number), letterPage{l, place(l.Message.Body, l.Reason)})
}

func (s *Server) letterBytes(w http.ResponseWriter, r *http.Request, who *session) error {
	if err := who.whole("Dead letters"); err != nil {
		return err
	}
	l, err := s.letterOf(r)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="dead-letter-%d"`, l.Number))
	_, _ = w.Write(l.Message.Body) // fails only when the browser has disconnected
	return nil
}

// planPage shows the letters that would be replayed or dropped and asks for confirmation.
type planPage struct {
	Drop    bool
	Letters []Letter // the first shownAtOnce
	Numbers []uint64 // all of them
	Left    int      // letters beyond maxAtOnce
}

// deadPlan is the dry run: it changes nothing.
func (s *Server) deadPlan(w http.ResponseWriter, r *http.Request, who *session) error {
	if err := who.whole("Dead letters"); err != nil {
		return err
	}
	filter, err := letterFilters(r)
	if err != nil {
		return err
	}
	do := r.FormValue("do")
	if do != "replay" && do != "drop" {
		return refuse(http.StatusBadRequest, "The form has no action: choose Replay or Drop.")
	}
	chosen, err := numbersOf(r)
	if err != nil {
		return err
	}
	upto, err := strconv.ParseUint(cmp.Or(r.FormValue("upto"), "0"), 10, 64)
	if err != nil {
		return refuse(http.StatusBadRequest, "%q is not the number of a dead letter.", r.FormValue("upto"))
	}
	all := r.FormValue("all") != ""
	if !all && len(chosen) == 0 {
		return refuse(http.StatusBadRequest, "No letter selected: select letters in the list, or all of a reason.")
	}
	page := planPage{Drop: do == "drop"}
	for l, err := range s.letters.List(r.Context()) {
		if err != nil {
			return err
		}
		if all && upto > 0 && l.Number > upto {
			break // dead-lettered after the list was shown
		}
		if all && !l.takenBy(filter) || !all && !chosen[l.Number] {
			continue
		}
		if len(page.Numbers) == maxAtOnce {
			page.Left++
			continue
		}
		page.Numbers = append(page.Numbers, l.Number)
		if len(page.Letters) < shownAtOnce {
			page.Letters = append(page.Letters, l)
		}
	}
	if len(page.Numbers) == 0 {
		return refuse(http.StatusNotFound, "These letters no longer exist: they were replayed or dropped.")
	}
	return s.show(w, r, who, "deadplan", "Preview", page)
}

// numbersOf reads letter numbers from a form: repeated fields, or a list in one field.
func numbersOf(r *http.Request) (map[uint64]bool, error) {
	if err := r.ParseForm(); err != nil {
		return nil, refuse(http.StatusBadRequest, "The form cannot be read: %v", err)
	}
	numbers := map[uint64]bool{}
	for _, text := range slices.Concat(r.PostForm["number"], strings.Fields(r.PostFormValue("numbers"))) {
		number, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "%q is not the number of a dead letter.", text)
		}
		numbers[number] = true
	}
	if len(numbers) > maxAtOnce {
		return nil, refuse(http.StatusBadRequest, "At most %d letters at once.", maxAtOnce)
	}
	return numbers, nil
}

type donePage struct {
	Drop               bool
	Done, Before, Gone int // Before: already replayed; Gone: no longer exist
	Failed             []string
	Stopped            error // why the rest was not started
}

// lettersAtOnce is the number of letters in progress, so that their messages share
// group commits of their lanes.
const lettersAtOnce = 16

func (s *Server) deadReplay(w http.ResponseWriter, r *http.Request, who *session) error {
	return s.settle(w, r, who, false, func(ctx context.Context, l Letter) (bool, error) {
		return s.letters.Replay(ctx, who.Subject(), l)
	})
}

func (s *Server) deadDrop(w http.ResponseWriter, r *http.Request, who *session) error {
	if r.FormValue("forever") == "" {
		return refuse(http.StatusBadRequest, "Nothing was dropped: tick the box to confirm.")
	}
	return s.settle(w, r, who, true, func(ctx context.Context, l Letter) (bool, error) {
		return false, s.letters.Drop(ctx, who.Subject(), l)
	})
}

// settle replays or drops the confirmed letters. A failed letter does not stop the
// others; when NATS is unavailable or full, no more are started. A crash leaves the
// rest unchanged: sending the same form again resumes.
func (s *Server) settle(w http.ResponseWriter, r *http.Request, who *session, drop bool, do func(context.Context, Letter) (before bool, err error)) error {
	if err := who.whole("Dead letters"); err != nil {
		return err
	}
	numbers, err := numbersOf(r)
	if err != nil {
		return err
	}
	if len(numbers) == 0 {
		return refuse(http.StatusBadRequest, "The form names no letter: select some in the list.")
	}
	page := donePage{Drop: drop}
	var mu sync.Mutex
	all, ctx := errgroup.WithContext(r.Context())
	all.SetLimit(lettersAtOnce)
	for number := range numbers {
		if ctx.Err() != nil {
			break
		}
		all.Go(func() error {
			l, found, err := s.letters.Get(ctx, number)
			before := false
			if err == nil && found {
				before, err = do(ctx, l)
			}
			if ctx.Err() != nil || errors.Is(err, flow.ErrFull) || errors.Is(err, flow.ErrUnavailable) {
				return errors.Join(err, ctx.Err())
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				page.Failed = append(page.Failed, err.Error())
			case !found:
				page.Gone++
			case before:
				page.Before++
			default:
				page.Done++
			}
			return nil
		})
	}
	page.Stopped = all.Wait()
	slices.Sort(page.Failed)
	did := "replayed"
	if drop {
		did = "dropped"
	}
	s.log.Info("dead letters were "+did+" at the console", "subject", who.Subject(), "letters", page.Done, "failed", len(page.Failed), "security", true)
	return s.show(w, r, who, "deaddone", "Result", page)
}
