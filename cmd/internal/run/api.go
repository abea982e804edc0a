package run

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"sluice/pkg/api"
	"sluice/pkg/auth"
	"sluice/pkg/change"
	"sluice/pkg/ops"
	"sluice/pkg/state"
	"sluice/pkg/stream"
)

// API is the api program and its options.
//
//	clients ──HTTP──▶ pkg/api ──▶ pkg/auth: who may
//	                     └──Submission──▶ pkg/stream ──▶ NATS JetStream
type API struct {
	HTTP    string `name:"http" default:"127.0.0.1:8080" help:"Address for clients."`
	Ops     string `default:"127.0.0.1:8081" help:"Address for operators: /metrics, /healthz, /readyz."`
	Pprof   string `help:"Loopback address of Go profiles, /debug/pprof/, such as 127.0.0.1:6060; off when empty."`
	TLSCert string `name:"tls-cert" type:"existingfile" help:"File of the PEM certificate chain; read again when it changes."`
	TLSKey  string `name:"tls-key" type:"existingfile" help:"File of its private key."`

	FingerprintKey string `default:"fingerprint.key" help:"File of the key that fingerprints users' secret keys; made when missing, shared by every api."`

	Auth
	Elasticsearch
	Limits
	Masking
	Memory int64 `default:"268435456" help:"Memory of the process in bytes, which its budgets are shares of."`
	NATS
	Streams

	Logging
	Healthcheck bool `help:"Ask the api on --ops whether it is ready, and exit 0 or 1."`
}

// Auth says which tokens the api accepts.
type Auth struct {
	Tokens        string `type:"existingfile" help:"YAML file of static tokens; read again when it changes. See sluice token."`
	JWKS          string `name:"jwt-jwks" help:"File or https URL of the keys that sign JWTs; without it, and with --jwt-issuer, the issuer is asked (OpenID Connect Discovery)."`
	JWTSecretFile string `name:"jwt-secret-file" type:"existingfile" help:"File of the secret that signs JWTs by HS256, instead of --jwt-jwks; read again when it changes."`
	JWTIssuer     string `name:"jwt-issuer" help:"Required iss of a JWT; any when empty, with --jwt-secret-file or --jwt-any."`
	JWTAudience   string `name:"jwt-audience" help:"Required aud of a JWT; any when empty, with --jwt-secret-file or --jwt-any."`
	JWTAny        bool   `name:"jwt-any" help:"Take JWTs of --jwt-jwks although --jwt-issuer or --jwt-audience is empty: also those that were made for others."`
	JWTScopes     string `name:"jwt-scope-prefix" help:"What scopes begin with in a JWT, such as sluice: for sluice:records:write; others are ignored."`
	JWTSubjects   string `name:"jwt-subject-prefix" default:"jwt:" help:"What is put before the sub of a JWT, so that it is none of the subjects of --tokens."`
}

// Limits says what one request, and all of them together, may take.
type Limits struct {
	MaxBody                  int           `default:"16777216" help:"Longest body in bytes, after decompression."`
	MaxRecords               int           `default:"50000" help:"Most records in one request."`
	MaxRecordBytes           int           `default:"8388608" help:"Longest record in bytes, at most 16 MiB."`
	MaxDepth                 int           `default:"64" help:"Deepest nesting of a record."`
	MaxRatio                 int           `default:"200" help:"Most bytes one compressed byte may stand for."`
	MaxInFlight              int64         `default:"0" help:"Memory in bytes for bodies being read or published; 0 for a quarter of --memory."`
	MaxConnections           int           `default:"4096" help:"Most connections at once; near it idle ones are closed."`
	MaxConnectionsPerAddress int           `default:"0" help:"Most connections from one address; 0 for a quarter of --max-connections. Raise it behind a proxy."`
	MaxFields                int           `default:"10000" help:"Most dataset fields of one subject, those deleted lately included."`
	Rate                     float64       `default:"0" help:"Requests per second of a token that says nothing else; 0 for no limit."`
	AccessLog                bool          `help:"Log every request: method, route, status, bytes, seconds, address and subject. Refusals for lack of rights are logged anyway, sampled."`
	HeaderTimeout            time.Duration `default:"10s" help:"Time to read the header of a request."`
	BodyTimeout              time.Duration `default:"30s" help:"Time to read the body of a request."`
}

// Elasticsearch is the second door, for Camunda's exporters and common shippers.
type Elasticsearch struct {
	Elasticsearch string `placeholder:"ADDR" help:"Address where clients of Elasticsearch post bulks, as Camunda's exporters do: their password is the access token. Off when empty."`
	MaxBulk       int    `default:"67108864" help:"Longest bulk in bytes, after decompression. Bulks get memory for four of them, beside --memory."`
}

// Masking says what of records is never kept.
type Masking struct {
	Mask []string `placeholder:"MEMBER,..." help:"Members of records whose values are secrets, in any case of letters and at any depth: *** is stored instead, as it always is of password."`
}

func (a Auth) config() auth.Config {
	cfg := auth.Config{Tokens: a.Tokens, JWT: auth.JWT{
		SecretFile: a.JWTSecretFile, Issuer: a.JWTIssuer, Audience: a.JWTAudience, Any: a.JWTAny,
		ScopePrefix: a.JWTScopes, SubjectPrefix: a.JWTSubjects,
	}}
	if strings.Contains(a.JWKS, "://") {
		cfg.JWT.KeyURL = a.JWKS
	} else {
		cfg.JWT.KeyFile = a.JWKS
	}
	return cfg
}

func (a *API) config() (api.Config, error) {
	inFlight, err := a.inFlight()
	version, commit := Version()
	return api.Config{
		Version: version, Commit: commit,
		Listen: a.HTTP, Elastic: a.Elasticsearch.Elasticsearch, BulkBytes: a.MaxBulk, TLSCert: a.TLSCert, TLSKey: a.TLSKey,
		BodyBytes: a.MaxBody, Records: a.MaxRecords, RecordBytes: a.MaxRecordBytes, Depth: a.MaxDepth,
		Ratio: a.MaxRatio, InFlightBytes: inFlight, Connections: a.MaxConnections, AddressConnections: a.MaxConnectionsPerAddress, Rate: a.Rate, Fields: a.MaxFields, AccessLog: a.AccessLog, Mask: a.Mask,
		HeaderTimeout: a.HeaderTimeout, BodyTimeout: a.BodyTimeout,
	}, err
}

// Run serves until ctx ends, then finishes what is in flight.
func (a *API) Run(ctx context.Context, log *slog.Logger) error {
	program := standalone{name: "api", ops: a.Ops, profiles: a.Pprof, memory: a.Memory + a.Bulks(a.Limits), healthcheck: a.Healthcheck, nats: a.NATS, silence: natsSilence, streams: a.Streams}
	return UntilStopped(ctx, program.run(ctx, log, a.Serve))
}

// natsSilence is how long NATS may say nothing to the api, whose clients are
// promised a 503 within 2 s. Others have more patience.
const natsSilence = 1200 * time.Millisecond

// Serve is the api, which listens from here on: the caller runs opsServer after it,
// so that it never shows an api whose clients are refused. It opens the streams when
// it runs, which may take until NATS is there: until then every post is answered 503.
func (a *API) Serve(lanes *stream.Stream, opsServer *ops.Server, log *slog.Logger) (Service, error) {
	tokens, err := auth.New(a.Auth.config(), log, opsServer.Registry())
	if err != nil {
		return nil, err
	}
	key, err := change.LoadOrCreateKey(a.FingerprintKey)
	if err != nil {
		return nil, fmt.Errorf("--fingerprint-key: %w", err)
	}
	publisher := stream.NewPublisher(lanes)
	usage := state.NewUsage(lanes.State, log)
	config, err := a.config()
	if err != nil {
		return nil, err
	}
	server, err := api.New(config, api.Deps{
		Auth: tokens, Stream: publisher, Progress: lanes, Changes: publisher, Last: lanes,
		State: state.New(lanes.State), Usage: usage, Dead: stream.NewDeadLetters(lanes),
		Secrets: &change.Secrets{Key: key}, Tracer: opsServer.Tracer("api"),
	}, log, opsServer.Registry())
	if err != nil {
		return nil, err
	}
	if _, err := server.Listen(); err != nil {
		return nil, err
	}
	opsServer.AddCheck("stream", func(ctx context.Context) error {
		if err := lanes.Check(ctx); err != nil {
			return err
		}
		return publisher.Check()
	})
	opsServer.AddCheck("tokens", tokens.Check)

	return func(ctx context.Context) error {
		// The listener drains first: what it still has in flight is published.
		return RunInOrder(ctx, server.Run, tokens.Run, after(lanes, usage.Run), publisher.Run, lanes.Run)
	}, nil
}
