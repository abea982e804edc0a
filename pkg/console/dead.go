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

// Letters are the dead letters. The real one is wired in cmd, of
// *stream.DeadLetters. Replay and Drop are idempotent: a letter is there again
// once, however often it is replayed, and the user's name is noted with it.
type Letters interface {
	List(ctx context.Context) iter.Seq2[Letter, error] // without bodies, oldest first
	Get(ctx context.Context, number uint64) (l Letter, found bool, err error)
	Replay(ctx context.Context, by string, l Letter) (before bool, err error)
	Drop(ctx context.Context, by string, l Letter) error
	Settled(ctx context.Context) iter.Seq2[Settled, error] // oldest first
}

// Letter is one record, or one whole message, that was set aside.
type Letter struct {
	Number uint64
	At     time.Time
	flow.Dead
}

// What says in words what was set aside.
func (l Letter) What() string {
	switch {
	case l.Message.Lane < 0:
		return "posted as Elasticsearch has it"
	case l.Index < 0:
		return fmt.Sprintf("all of message %d of lane %d", l.Message.Seq, l.Message.Lane)
	}
	return fmt.Sprintf("record %d of message %d of lane %d", l.Index, l.Message.Seq, l.Message.Lane)
}

// Settled is what became of a letter, and by whom.
type Settled struct {
	At                  time.Time
	By, Code, Outcome   string
	Lane                int
	Incarnation, Number uint64 // Number is the message's in its lane
	Index               int
}

const (
	maxLetters  = 20_000 // are looked through for a page
	shownAtOnce = 200    // are listed on it
	maxAtOnce   = 5_000  // are replayed or dropped by one form
)

// letterGroup is the letters of one reason.
type letterGroup struct {
	Code, Reason string // Reason is that of the newest
	Letters      int
	First, Last  time.Time
}

type deadPage struct {
	Filters filters
	Groups  []letterGroup
	Letters []Letter // the newest that the filter takes
	Matched int      // how many it takes
	Upto    uint64   // the newest number there was
	More    bool     // there are more than are looked through
	Settled []Settled
	Unknown error // why Settled is not known
}

// letterFilters pick letters by what they are.
func letterFilters(r *http.Request) (filters, error) {
	f := filtersOf(r, filter{Name: "code", Label: "Code"}, filter{Name: "source", Label: "Source"}, filter{Name: "lane", Label: "Lane", Digits: true})
	return f, f.Check()
}

// takenBy reports whether a letter is one of those that filters pick.
func (l Letter) takenBy(f filters) bool {
	code, source, lane := f.Value("code"), f.Value("source"), f.Value("lane")
	return (code == "" || l.Code == code) && (source == "" || l.Message.Source == source) && (lane == "" || strconv.Itoa(l.Message.Lane) == lane)
}

// dead lists dead letters by reason.
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

// lastSettled are the newest notes of what became of letters, newest first.
func (s *Server) lastSettled(ctx context.Context) (last []Settled, err error) {
	const most = 50
	for note, err := range s.letters.Settled(ctx) {
		if err != nil {
			return nil, err
		}
		if last = append(last, note); len(last) > 2*most {
			last = slices.Delete(last, 0, len(last)-most)
		}
	}
	slices.Reverse(last)
	return last[:min(len(last), most)], nil
}

// letterOf is the letter that an address names.
func (s *Server) letterOf(r *http.Request) (Letter, error) {
	number, err := strconv.ParseUint(r.PathValue("number"), 10, 64)
	if err != nil {
		return Letter{}, refuse(http.StatusNotFound, "%q is not the number of a dead letter.", r.PathValue("number"))
	}
	l, found, err := s.letters.Get(r.Context(), number)
	if err == nil && !found {
		err = refuse(http.StatusNotFound, "There is no dead letter %d: it was replayed or dropped.", number)
	}
	return l, err
}

type letterPage struct {
	Letter Letter
	Bytes  placedBytes
}

// letter shows one dead letter, with the place in it that was refused.
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

// letterBytes gives the bytes of a letter as they are.
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
	_, _ = w.Write(l.Message.Body) // the browser is gone when this fails
	return nil
}

// planPage says what would be done, and asks whether it is to be.
type planPage struct {
	Drop    bool
	Letters []Letter // the first of them
	Numbers []uint64 // all of them
	Left    int      // are not among them: one form does so many
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
		return refuse(http.StatusBadRequest, "Say whether the letters are to be replayed or dropped.")
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
		return refuse(http.StatusBadRequest, "Which ones? Choose letters in the list, or all of a reason.")
	}
	page := planPage{Drop: do == "drop"}
	for l, err := range s.letters.List(r.Context()) {
		if err != nil {
			return err
		}
		if all && upto > 0 && l.Number > upto {
			break // set aside since the list was shown: for the next time
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
		return refuse(http.StatusNotFound, "None of these letters is there any more: they were replayed or dropped meanwhile.")
	}
	return s.show(w, r, who, "deadplan", "What would be done", page)
}

// numbersOf are the numbers a form names, one by one or as a list.
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

// donePage says what was done.
type donePage struct {
	Drop               bool
	Done, Before, Gone int // Before were replayed before, Gone are not there any more
	Failed             []string
	Stopped            error // none of the rest was begun
}

// lettersAtOnce is how many letters are worked on at a time, so that their
// messages share the commits of their lanes.
const lettersAtOnce = 16

func (s *Server) deadReplay(w http.ResponseWriter, r *http.Request, who *session) error {
	return s.settle(w, r, who, false, func(ctx context.Context, l Letter) (bool, error) {
		return s.letters.Replay(ctx, who.Subject(), l)
	})
}

func (s *Server) deadDrop(w http.ResponseWriter, r *http.Request, who *session) error {
	if r.FormValue("forever") == "" {
		return refuse(http.StatusBadRequest, "Nothing was dropped: say that you know that they cannot be had back.")
	}
	return s.settle(w, r, who, true, func(ctx context.Context, l Letter) (bool, error) {
		return false, s.letters.Drop(ctx, who.Subject(), l)
	})
}

// settle does what was confirmed, letter by letter. What is wrong with one does
// not keep the others from it; when NATS is away or full, no more are begun. A
// crash leaves the rest as they were: the same form again goes on.
func (s *Server) settle(w http.ResponseWriter, r *http.Request, who *session, drop bool, do func(context.Context, Letter) (before bool, err error)) error {
	if err := who.whole("Dead letters"); err != nil {
		return err
	}
	numbers, err := numbersOf(r)
	if err != nil {
		return err
	}
	if len(numbers) == 0 {
		return refuse(http.StatusBadRequest, "Which ones? The form names no letter.")
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
	return s.show(w, r, who, "deaddone", "What was done", page)
}
