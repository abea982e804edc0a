package flow_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/flow"
)

// list makes the pieces of a claim of what String writes, such as
// "open 4, waiting 8, dead 9".
func list(text string) (all []flow.Piece) {
	for _, one := range strings.Split(text, ", ") {
		state, end, ok := strings.Cut(one, " ")
		if !ok {
			continue
		}
		n := 0
		for _, c := range end {
			n = 10*n + int(c-'0')
		}
		p := flow.Piece{To: n, State: flow.PieceState(state)}
		if p.State == flow.PieceDead {
			p.Reason = "why"
		}
		all = append(all, p)
	}
	return all
}

var (
	inserted = flow.Outcome{Result: flow.ResultInserted, LastRow: 9}
	missing  = flow.Outcome{Result: flow.ResultMissing}
	single   = flow.Outcome{Result: flow.ResultRejected, Reason: "why"}
	untried  = flow.Outcome{}
)

func rejected(cut int) flow.Outcome {
	return flow.Outcome{Result: flow.ResultRejected, Cut: cut, Reason: "why"}
}
func tooLarge(cut int) flow.Outcome { return flow.Outcome{Result: flow.ResultTooLarge, Cut: cut} }
func landed(from, to int) flow.Outcome {
	return flow.Outcome{Result: flow.ResultLandedLate, Landed: flow.Run{From: from, To: to}}
}
func opened(ends ...int) flow.Outcome { return flow.Outcome{Result: flow.ResultOpened, Ends: ends} }
func dead(rows int) flow.Outcome {
	return flow.Outcome{Result: flow.ResultDeadLettered, Rows: rows}
}

// TestEveryStateMeetsEveryOutcome is the table of Claim.Next.
func TestEveryStateMeetsEveryOutcome(t *testing.T) {
	cut := func(from, to int) *flow.Run { return &flow.Run{From: from, To: to} }
	for _, tt := range []struct {
		name     string
		settled  int
		pieces   string
		cut      *flow.Run
		outcomes []flow.Outcome

		wantSettled int
		want        string // "error" for one
		wantCut     *flow.Run
		wantDead    int
	}{
		{"no answer", 0, "open 8", nil, []flow.Outcome{untried}, 0, "open 8", nil, 0},
		{"an ordinary block", 0, "open 8", nil, []flow.Outcome{inserted}, 8, "", nil, 0},
		{"two at once", 0, "open 4, open 8", nil, []flow.Outcome{inserted, inserted}, 8, "", nil, 0},
		{"the second alone", 0, "open 4, open 8", nil, []flow.Outcome{untried, inserted}, 0, "open 4, stored 8", nil, 0},
		{"then the first", 0, "open 4, stored 8", nil, []flow.Outcome{inserted, untried}, 8, "", nil, 0},
		{"its rows are missing", 0, "open 8", nil, []flow.Outcome{missing}, 0, "error", nil, 0},
		{"an outcome too few", 0, "open 4, open 8", nil, []flow.Outcome{inserted}, 0, "error", nil, 0},

		{"a rejected piece is cut", 0, "open 8", nil, []flow.Outcome{rejected(4)}, 0, "open 4, waiting 8", cut(0, 8), 0},
		{"a large piece is cut", 2, "open 8", nil, []flow.Outcome{tooLarge(5)}, 2, "open 5, waiting 8", cut(2, 8), 0},
		{"a single row is not too large to be cut", 7, "open 8", nil, []flow.Outcome{tooLarge(0)}, 7, "open 8", nil, 0},
		{"only the first open piece is cut", 0, "open 4, open 8", nil, []flow.Outcome{untried, rejected(6)}, 0, "open 4, open 8", nil, 0},
		{"also when the first is stored by now", 0, "open 4, open 8", nil, []flow.Outcome{inserted, rejected(6)}, 4, "open 8", nil, 0},
		{"cut beyond its rows", 0, "open 8", nil, []flow.Outcome{rejected(8)}, 0, "error", nil, 0},
		{"a rejected row", 3, "open 4, open 8", nil, []flow.Outcome{single, inserted}, 3, "dead 4, stored 8", nil, 0},
		{"is dead-lettered", 3, "dead 4, stored 8", nil, []flow.Outcome{dead(1), untried}, 8, "", nil, 1},
		{"a landing without a cut", 0, "open 8", nil, []flow.Outcome{landed(0, 8)}, 0, "error", nil, 0},

		{"a first part has no answer", 0, "open 4, waiting 8", cut(0, 8), []flow.Outcome{untried, untried}, 0, "open 4, waiting 8", cut(0, 8), 0},
		{"nothing is opened before the token is spent", 0, "open 4, waiting 8", cut(0, 8), []flow.Outcome{untried, opened(8)}, 0, "open 4, waiting 8", cut(0, 8), 0},
		{"the first part alone", 0, "open 4, waiting 8", cut(0, 8), []flow.Outcome{inserted, opened(6, 8)}, 4, "open 6, open 8", nil, 0},
		{"it is cut again", 0, "open 4, waiting 8, open 9", cut(0, 8), []flow.Outcome{rejected(2), untried, inserted}, 0, "open 2, waiting 4, waiting 8, stored 9", cut(0, 8), 0},
		{"all rows landed late", 0, "open 2, waiting 4, waiting 8, open 9", cut(0, 8), []flow.Outcome{landed(0, 8), untried, untried, untried}, 8, "open 9", nil, 0},
		{"an earlier first part landed late", 0, "open 2, waiting 4, waiting 8", cut(0, 8), []flow.Outcome{landed(0, 4), untried, opened(8)}, 4, "open 8", nil, 0},
		{"a part of a part landed late", 0, "open 2, waiting 4, waiting 8", cut(0, 8), []flow.Outcome{landed(0, 3), untried, untried}, 0, "error", nil, 0},
		{"more than the piece landed late", 0, "open 2, waiting 4, waiting 8", cut(0, 8), []flow.Outcome{landed(0, 9), untried, untried}, 0, "error", nil, 0},
		{"a rejected row passes its token on", 0, "open 1, waiting 2, waiting 4", cut(0, 4), []flow.Outcome{single, untried, untried}, 0, "dead 1, open 2, waiting 4", cut(0, 4), 0},
		{"it is not dead-lettered while it may land", 0, "dead 1, open 2, waiting 4", cut(0, 4), []flow.Outcome{dead(1), untried, untried}, 0, "error", nil, 0},
		{"it landed late", 0, "dead 1, open 2, waiting 4", cut(0, 4), []flow.Outcome{untried, landed(0, 2), untried}, 2, "waiting 4", nil, 0},
		{"it did not, and waits for its dead letter", 0, "dead 1, open 2, waiting 4", cut(0, 4), []flow.Outcome{untried, inserted, opened(4)}, 0, "dead 1, stored 2, open 4", nil, 0},
		{"the row alone landed late", 0, "dead 1, open 2, waiting 4", cut(0, 4), []flow.Outcome{untried, landed(0, 1), opened(4)}, 1, "waiting 2, open 4", nil, 0},
		{"the last row of a cut is rejected", 0, "dead 3, open 4, open 8", cut(0, 4), []flow.Outcome{untried, single, untried}, 0, "dead 3, dead 4, open 8", nil, 0},

		{"waiting rows are opened", 0, "waiting 8", nil, []flow.Outcome{opened(3, 6, 8)}, 0, "open 3, open 6, open 8", nil, 0},
		{"some of them", 0, "waiting 8", nil, []flow.Outcome{opened(3, 6)}, 0, "open 3, open 6, waiting 8", nil, 0},
		{"more than there are", 0, "waiting 8", nil, []flow.Outcome{opened(9)}, 0, "error", nil, 0},
		{"out of order", 0, "waiting 8", nil, []flow.Outcome{opened(3, 3)}, 0, "error", nil, 0},
		{"a waiting piece is not inserted", 0, "waiting 8", nil, []flow.Outcome{inserted}, 0, "error", nil, 0},
		{"a stored piece is not inserted", 0, "open 4, stored 8", nil, []flow.Outcome{untried, inserted}, 0, "error", nil, 0},
		{"a dead piece is not inserted", 0, "dead 1, open 2", nil, []flow.Outcome{inserted, untried}, 0, "error", nil, 0},
		{"an open piece is not dead-lettered", 0, "open 8", nil, []flow.Outcome{dead(1)}, 0, "error", nil, 0},
		{"an open piece is not opened", 0, "open 8", nil, []flow.Outcome{opened(8)}, 0, "error", nil, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := flow.Claim{First: 1, Last: 2, Settled: tt.settled, Cut: tt.cut, Pieces: list(tt.pieces)}
			kept := slices.Clone(before.Pieces)
			next, err := before.Next(tt.outcomes)
			expect.Equal(t, "the claim before has changed", kept, before.Pieces)
			if tt.want == "error" {
				expect.Not(t, err == nil || errors.Is(err, flow.ErrMissing) != slices.Contains(resultsOf(tt.outcomes), flow.ResultMissing), "got %+v, %v, want an error", next, err)
				return
			}
			want := flow.Claim{First: 1, Last: 2, Settled: tt.wantSettled, Cut: tt.wantCut, DeadLettered: tt.wantDead, Pieces: list(tt.want)}
			next.LastRow = 0
			if len(next.Pieces) == 0 {
				next.Pieces = nil
			}
			if diff := cmp.Diff(want, next); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func resultsOf(outcomes []flow.Outcome) (all []flow.Result) {
	for _, o := range outcomes {
		all = append(all, o.Result)
	}
	return all
}

// TestTheTokenOfACutIsItsFirstParts: and passes from a rejected row to the next part.
func TestTheTokenOfACutIsItsFirstParts(t *testing.T) {
	c := flow.Claim{First: 7, Last: 9, Hash: "h", Settled: 2, Pieces: list("open 10, open 20")}
	whole := c.Token(3, 5, 0)
	if want := "FLOW_3@5:7-9:h#2"; whole != want {
		t.Errorf("got %s, want %s", whole, want)
	}
	step := func(outcomes ...flow.Outcome) {
		t.Helper()
		var err error
		if c, err = c.Next(outcomes); err != nil {
			t.Fatal(err)
		}
	}
	tokens := func() (all []string) {
		for i, p := range c.Pieces {
			if p.State == flow.PieceOpen {
				all = append(all, strings.TrimPrefix(c.Token(3, 5, i), "FLOW_3@5:7-9:h#"))
			}
		}
		return all
	}
	for _, tt := range []struct {
		outcomes []flow.Outcome
		want     string
	}{
		{[]flow.Outcome{rejected(4), inserted}, "2"},
		{[]flow.Outcome{rejected(3), untried, untried}, "2"},
		{[]flow.Outcome{single, untried, untried, untried}, "2"},
		{[]flow.Outcome{untried, inserted, opened(7, 10), untried}, "4 7"},
		{[]flow.Outcome{dead(1), untried, rejected(5), untried, untried}, "4 7"},
		{[]flow.Outcome{inserted, opened(7), inserted, untried}, "5"},
	} {
		step(tt.outcomes...)
		if got := strings.Join(tokens(), " "); got != tt.want {
			t.Errorf("after %v the tokens are %s, want %s; %+v", tt.outcomes, got, tt.want, c)
		}
	}
	if step(inserted, untried); !c.IsSettled() || c.Settled != 20 || c.DeadLettered != 1 || c.LastRow != 9 {
		t.Errorf("at the end %+v", c)
	}
}

// TestAClaimIsBounded whatever the outcomes of its pieces.
func TestAClaimIsBounded(t *testing.T) {
	const rows = 1_000_000
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		c := flow.Claim{First: 1, Last: 2, Pieces: []flow.Piece{{To: rows, State: flow.PieceWaiting}}}
		rejectedRows := 0
		for step := 0; !c.IsSettled() && step < 20_000; step++ {
			outcomes := make([]flow.Outcome, len(c.Pieces))
			for i, p := range c.Pieces {
				of := c.Piece(i)
				switch p.State {
				case flow.PieceWaiting:
					var ends []int
					for end := of.From; end < p.To; {
						end = min(p.To, end+1+r.IntN(rows/50))
						ends = append(ends, end)
					}
					outcomes[i] = opened(ends...)
				case flow.PieceDead:
					if !c.InCut(i) {
						outcomes[i] = dead(p.To - of.From)
					}
				case flow.PieceOpen:
					if i != c.FirstOpen() {
						break
					}
					outcomes[i] = inserted
					if rejectedRows < 90 && r.IntN(30) > 0 {
						if outcomes[i] = rejected(of.From + (p.To-of.From)/2); p.To-of.From == 1 {
							outcomes[i] = single
							rejectedRows++
						}
					}
				}
			}
			var err error
			if c, err = c.Next(outcomes); err != nil {
				t.Fatalf("seed %d: %v: %+v %+v", seed, err, c.Cut, c.Pieces)
			}
			if n := len(c.Pieces); n > flow.MaxPieces {
				t.Fatalf("seed %d: %d pieces", seed, n)
			}
		}
		if !c.IsSettled() || c.Settled != rows || c.DeadLettered != rejectedRows {
			t.Fatalf("seed %d: %d pieces are left at row %d, %d rows dead-lettered of %d rejected", seed, len(c.Pieces), c.Settled, c.DeadLettered, rejectedRows)
		}
	}
}
