package run

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"

	"github.com/klauspost/compress/s2"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/auth"
	"sluice/pkg/console"
	"sluice/pkg/flow"
	"sluice/pkg/ops"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// Console is the web console and its options.
//
//	browsers ──HTTP──▶ pkg/console ──▶ pkg/auth: tokens and scopes
//	                       ├──reads──▶ ClickHouse
//	                       ├──lanes, dead letters──▶ pkg/stream ──▶ NATS
//	                       └──metrics──▶ the ops ports of api and ingester
type Console struct {
	Page   console.Config `embed:""`
	Watch  []string       `default:"127.0.0.1:8081,127.0.0.1:8082" help:"Ops addresses of the apis and ingesters to show, comma-separated."`
	Ops    string         `default:"127.0.0.1:8084" help:"Address for operators: /metrics, /healthz, /readyz."`
	Memory int64          `default:"268435456" help:"Memory of the process in bytes."`

	Auth auth.Config `embed:""`
	Operator
	ClickHouse
	NATS

	Sources console.SourceTokens `kong:"-"` // changes tokens; nil: the console cannot

	Healthcheck bool `help:"Check whether the console on --ops is ready, and exit with 0 or 1."`
}

func (c *Console) Run(ctx context.Context, log *slog.Logger) error {
	nats, err := c.Operator.logInAs("console", SecretNATSConsole, c.NATS)
	if err != nil {
		return err
	}
	program := standalone{name: "console", ops: c.Ops, memory: c.Memory, healthcheck: c.Healthcheck, nats: nats}
	return UntilStopped(ctx, program.run(ctx, log, c.serve))
}

func (c *Console) serve(lanes *stream.Stream, opsServer *ops.Server, log *slog.Logger) (Service, error) {
	started := opsServer.Starting("waiting for NATS")
	tokens, err := auth.New(c.Auth, log, opsServer.Registry())
	if err != nil {
		return nil, err
	}
	server, closing, err := c.New(lanes, tokens, log, opsServer.Registry())
	if err != nil {
		return nil, err
	}
	if _, err := server.Listen(); err != nil {
		closing()
		return nil, err
	}
	opsServer.AddCheck("connections", server.Check)
	opsServer.AddCheck("tokens", tokens.Check)
	opened := func(ctx context.Context) error {
		started()
		<-ctx.Done()
		return nil
	}
	return func(ctx context.Context) error {
		defer closing()
		return RunInOrder(ctx, server.Run, after(lanes, opened), tokens.Run, lanes.Run)
	}, nil
}

// New returns the console of streams that the caller runs.
func (c *Console) New(lanes *stream.Stream, tokens *auth.Authenticator, log *slog.Logger, reg prometheus.Registerer) (server *console.Server, closing func(), err error) {
	// Never the admin: queries of users may only read.
	cfg, err := c.Operator.Console(c.ClickHouse)
	if err != nil {
		return nil, nil, err
	}
	reader, err := console.NewReader(cfg.URL)
	if err != nil {
		return nil, nil, err
	}
	dead := stream.NewDeadLetters(lanes)
	deps := console.Deps{
		Auth: tokens, Warehouse: reader, Stream: standing{lanes, dead},
		Metrics: reg, Letters: letters{dead, stream.NewPublisher(lanes)}, Tokens: func() []console.Token { return listed(tokens) }, Sources: c.Sources,
	}
	for _, address := range c.Watch {
		deps.Programs = append(deps.Programs, console.NewProgram(address))
	}
	if deps.Questions, err = questions(); err != nil {
		return nil, nil, errors.Join(err, reader.Close())
	}
	server, err = console.New(c.Page, deps, log)
	if err != nil {
		reader.Close()
		return nil, nil, err
	}
	return server, func() { reader.Close() }, nil
}

// questions are those of docs/analytics.md.
func questions() (all []console.Question, err error) {
	known, err := warehouse.Questions()
	for _, q := range known {
		one := console.Question{Name: q.Name, Asks: q.Asks, Means: q.Means, SQL: q.SQL}
		for _, p := range q.Parameters {
			one.Parameters = append(one.Parameters, console.Parameter{Name: p.Name, Type: p.Type, Means: p.Means, Example: p.Example})
		}
		all = append(all, one)
	}
	return all, err
}

// NewTokens reads the token file for a console in the process of an api, which has the
// metrics of the same names.
func NewTokens(file string, log *slog.Logger) (*auth.Authenticator, error) {
	return auth.New(auth.Config{Tokens: file}, log, prometheus.NewRegistry())
}

// listed are the active static tokens, without secrets.
func listed(tokens *auth.Authenticator) []console.Token {
	var all []console.Token
	for _, t := range tokens.Tokens() {
		all = append(all, console.Token{Subject: t.Subject, Source: t.Source, Scopes: t.Scopes, Tables: t.Tables, Tenants: t.Tenants, Exclude: t.Exclude, Expires: t.Expires})
	}
	return all
}

// standing implements console.Deps.Stream.
type standing struct {
	stream *stream.Stream
	dead   *stream.DeadLetters
}

func (s standing) Standing(ctx context.Context) (now console.Standing, err error) {
	lanes, err := s.stream.Standings(ctx)
	if err != nil {
		return now, err
	}
	for _, l := range lanes {
		now.Lanes = append(now.Lanes, console.Lane{
			Number: l.Number, Stream: l.Stream, Last: l.Last, Bytes: l.Bytes, MaxBytes: l.MaxBytes,
			Backlog: l.Waiting, BacklogBytes: l.WaitingBytes, Position: l.LaneState,
		})
	}
	for _, source := range s.stream.Sources() {
		now.Sources = append(now.Sources, console.Source{Name: source.Name, Lanes: source.Lanes, Moving: source.Move})
	}
	room, err := s.dead.Room(ctx)
	now.Dead = console.DeadRoom{Letters: room.Letters, Written: room.Last, Bytes: room.Bytes, Max: room.Max}
	return now, err
}

// letters implements console.Deps.Letters.
type letters struct {
	dead      *stream.DeadLetters
	publisher *stream.Publisher // replays them
}

func (l letters) List(ctx context.Context) iter.Seq2[console.Letter, error] {
	return func(yield func(console.Letter, error) bool) {
		room, err := l.dead.Room(ctx) // letters added meanwhile wait for the next list
		if err != nil {
			yield(console.Letter{}, err)
			return
		}
		for d, err := range l.dead.List(ctx, stream.DeadFilter{Upto: room.Last, Heads: true}) {
			if !yield(letterOf(d), err) {
				return
			}
		}
	}
}

func (l letters) Get(ctx context.Context, number uint64) (console.Letter, bool, error) {
	d, ok, err := l.dead.Get(ctx, number)
	shown := letterOf(d)
	shown.Message.Body = PlainBody(d)
	return shown, ok, err
}

func (l letters) Replay(ctx context.Context, by string, shown console.Letter) (before bool, err error) {
	d, ok, err := l.dead.Get(ctx, shown.Number)
	if err != nil || !ok {
		return !ok, err // replayed meanwhile by another user
	}
	receipt, err := l.dead.As(by).Replay(ctx, l.publisher, d)
	if errors.Is(err, stream.ErrHistoryPurged) {
		err = fmt.Errorf("%w: find its record in ClickHouse, and drop the letter if it is stored", err)
	}
	return receipt.Replayed, err
}

func (l letters) Drop(ctx context.Context, by string, shown console.Letter) error {
	d, ok, err := l.dead.Get(ctx, shown.Number)
	if err != nil || !ok {
		return err
	}
	return l.dead.As(by).Drop(ctx, d)
}

func (l letters) Settled(ctx context.Context) iter.Seq2[console.Settled, error] {
	return func(yield func(console.Settled, error) bool) {
		for note, err := range l.dead.Settled(ctx) {
			shown := console.Settled{
				At: note.At, By: note.By, Code: note.Code, Outcome: note.Resolution.Outcome,
				Lane: note.Lane, Incarnation: note.Incarnation, Number: note.Seq, Index: note.Index,
			}
			if !yield(shown, err) {
				return
			}
		}
	}
}

func letterOf(d stream.DeadLetter) console.Letter {
	return console.Letter{Number: d.Number, At: d.At, Dead: d.Dead}
}

// PlainBody is the content of a dead letter, decompressed if possible.
func PlainBody(d stream.DeadLetter) []byte {
	const maxBytes = 64 << 20
	body := d.Message.Body
	if n, err := s2.DecodedLen(body); d.Message.Encoding != flow.EncodingS2 || err != nil || n > maxBytes {
		return body
	}
	if plain, err := s2.Decode(nil, body); err == nil {
		return plain
	}
	return body
}
