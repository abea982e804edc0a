package warehouse

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"
	"github.com/ClickHouse/clickhouse-go/v2"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"sluice/pkg/change"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/warehouse/native"
)

// Insert stores the rows of the block. When it returns nil they are durable, and
// in every materialized view. The token makes it harmless to call again with the
// same rows, after a success too; another token, or other rows, would store more.
//
// The error is a *flow.StoreError. After it the outcome is unknown, whatever the
// class: the table, or some of the views, may have taken the rows.
func (db *DB) Insert(ctx context.Context, b record.Block) error {
	if b.From == b.To {
		return nil // all of it is dead-lettered, or none of it were records
	}
	if b.StoredAt <= 0 {
		return errors.New("warehouse: Block.StoredAt is not set, and its rows would expire at once")
	}
	err := db.insert(ctx, "records", b.Token, cmp.Or(b.Timeout, db.cfg.InsertTimeout), native.Columns(b.Columns, b.From, b.To, b.StoredAt))
	if err == nil {
		db.metrics.parts.Add(float64(months(b.Columns.TS[b.From:b.To])))
	}
	return err
}

// InsertChanges stores what was changed under a token of its own; all else as
// for Insert.
func (db *DB) InsertChanges(ctx context.Context, token string, changes []change.Audit) error {
	if len(changes) == 0 {
		return nil
	}
	if !db.cfg.Single {
		return db.insert(ctx, "changes", token, db.cfg.InsertTimeout, auditColumns(changes))
	}
	all, err := db.layout(ctx)
	if err != nil {
		return storeError("insert into "+db.name+".changes", err)
	}
	for _, r := range all {
		if err := db.insertAt(ctx, db.servers.insertsAt(r.address, db.cfg.Connections, db.metrics), "changes", token, db.cfg.InsertTimeout, auditColumns(changes)); err != nil {
			return err
		}
	}
	return nil
}

func auditColumns(changes []change.Audit) proto.Input {
	var seq proto.ColUInt64
	at := new(proto.ColDateTime64).WithPrecision(proto.PrecisionMilli).WithLocation(time.UTC)
	by, kind, targetKind := new(proto.ColStr).LowCardinality(), new(proto.ColStr).LowCardinality(), new(proto.ColStr).LowCardinality()
	key := new(proto.ColStr)
	members := proto.NewArray(new(proto.ColStr).LowCardinality())
	for _, c := range changes {
		seq.Append(c.Seq)
		at.Append(c.At)
		by.Append(c.By)
		kind.Append(string(c.Kind))
		targetKind.Append(c.TargetKind)
		key.Append(c.Key)
		members.Append(c.Members)
	}
	return proto.Input{
		{Name: "stream_seq", Data: seq},
		{Name: "changed_at", Data: at},
		{Name: "changed_by", Data: by},
		{Name: "kind", Data: kind},
		{Name: "target_kind", Data: targetKind},
		{Name: "target_key", Data: key},
		{Name: "members", Data: members},
	}
}

// serverMargin is how much sooner the server gives up than this side does: then
// it says so, and is known to be done with it.
const serverMargin = 5 * time.Second

func (db *DB) insert(ctx context.Context, table, token string, timeout time.Duration, columns proto.Input) error {
	return db.insertAt(ctx, db.inserts, table, token, timeout, columns)
}

func (db *DB) insertAt(ctx context.Context, at *connections, table, token string, timeout time.Duration, columns proto.Input) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	settings, err := db.insertSettings(ctx, table, token, timeout)
	if err != nil {
		return storeError("insert into "+db.name+"."+table, err)
	}
	ctx, span := db.inserting(ctx, table, columns)
	err = at.send(ctx, ch.Query{
		Body:     fmt.Sprintf("INSERT INTO %s.%s %s VALUES", db.name, table, columns.Columns()),
		QueryID:  token + "-" + db.attempt(),
		Input:    columns, // one block: a token covers no more
		Settings: settings,
	})
	if err == nil {
		endSpan(span, "")
		return nil
	}
	db.servers.replicas.Store(0) // ask again: a replica that is gone may have been taken out of the cluster
	e := storeError("insert into "+db.name+"."+table, err)
	endSpan(span, classNames[e.Class])
	db.metrics.failures.WithLabelValues(classNames[e.Class]).Inc()
	return e
}

// inserting begins the span of one attempt. What is sent to ClickHouse within it
// carries its trace context, so that the server's own spans belong to it. The span is
// nil where nothing is traced.
func (db *DB) inserting(ctx context.Context, table string, columns proto.Input) (context.Context, trace.Span) {
	if db.cfg.Tracer == nil {
		return ctx, nil
	}
	return db.cfg.Tracer.Start(ctx, "INSERT "+db.name+"."+table, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("db.system.name", "clickhouse"),
		attribute.String("db.namespace", db.name),
		attribute.String("db.operation.name", "INSERT"),
		attribute.String("db.collection.name", table),
		attribute.Int("sluice.rows", columns[0].Data.Rows()),
	))
}

// endSpan ends the span of an attempt, with the class of its failure. What ClickHouse
// says of one may quote what it was sent, and stays here.
func endSpan(span trace.Span, failure string) {
	if span == nil {
		return
	}
	if failure != "" {
		span.SetAttributes(attribute.String("error.type", failure))
		span.SetStatus(codes.Error, failure)
	}
	span.End()
}

// send runs one insert, or question, on one connection.
func (db *DB) send(ctx context.Context, q ch.Query) error { return db.inserts.send(ctx, q) }

// insertSettings are what exactly once rests on, and are sent whatever the
// defaults of the server are: they have changed between versions. Check asks for
// the very same.
func (db *DB) insertSettings(ctx context.Context, table, token string, timeout time.Duration) ([]ch.Setting, error) {
	all := []ch.Setting{
		{Key: "async_insert", Value: "0"}, // a queue would acknowledge before it stores
		{Key: "insert_deduplicate", Value: "1"},
		{Key: "deduplicate_blocks_in_dependent_materialized_views", Value: "1"}, // else a repeat counts twice in the views
		{Key: "insert_deduplication_token", Value: token},
		{Key: "max_partitions_per_insert_block", Value: "0"}, // a back-fill may span any number of months
		{Key: "optimize_on_insert", Value: "0"},              // merges collapse equal keys anyway; at insert it costs a quarter of the engine's time
	}
	if db.cfg.Cluster != "" {
		all = append(all, ch.Setting{Key: "distributed_foreground_insert", Value: "1"}) // a queue would acknowledge before it stores
	}
	quorum, err := db.quorum(ctx, table == "changes")
	if err != nil {
		return nil, err
	}
	if quorum > 0 {
		all = append(all, ch.Setting{Key: "insert_quorum", Value: strconv.FormatInt(quorum, 10)}, ch.Setting{Key: "insert_quorum_parallel", Value: "1"})
	}
	if timeout > 2*serverMargin {
		all = append(all, ch.Setting{Key: "max_execution_time", Value: strconv.Itoa(int((timeout - serverMargin).Seconds()))})
	}
	for i := range all {
		all[i].Important = true // an unknown one is an error, not a warning
	}
	return all, nil
}

// attempt makes a query id different from that of the attempt before, which
// may still be running, here or in a process that came before this one.
func (db *DB) attempt() string {
	return strconv.FormatInt(db.attempts.Add(1), 36)
}

// months counts the months in which points in time fall, in ms since 1970: an
// insert makes a part of flow.records for each.
func months(points []int64) int {
	type span struct{ from, to int64 }
	var seen []span
	var last span
next:
	for _, ms := range points {
		if last.from <= ms && ms < last.to {
			continue
		}
		for _, last = range seen {
			if last.from <= ms && ms < last.to {
				continue next
			}
		}
		year, month, _ := time.UnixMilli(ms).UTC().Date()
		last = span{
			time.Date(year, month, 1, 0, 0, 0, 0, time.UTC).UnixMilli(),
			time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC).UnixMilli(),
		}
		seen = append(seen, last)
	}
	return len(seen)
}

// classes says what to do about each error code of ClickHouse. After every one
// of them the outcome is unknown, because a materialized view may have failed
// after the table and other views took the block: only the same block with the
// same token may be sent again. A code that is not here is ClassUnknown.
var classes = map[flow.Class][]proto.Error{
	// The server, the network or the load: it passes.
	flow.ClassRetry: {
		proto.ErrUnexpectedEndOfFile, proto.ErrAttemptToReadAfterEOF, proto.ErrCannotReadAllData,
		proto.ErrCannotReadFromFileDescriptor, proto.ErrCannotWriteToFileDescriptor, proto.ErrCannotOpenFile,
		proto.ErrFileDoesntExist, proto.ErrTimeoutExceeded, proto.ErrCannotAllocateMemory, proto.ErrDNSError,
		proto.ErrQuotaExceeded, proto.ErrTooManySimultaneousQueries, proto.ErrNoFreeConnection, proto.ErrSocketTimeout,
		proto.ErrNetworkError, proto.ErrQueryWithSameIDIsAlreadyRunning, proto.ErrNoZookeeper, proto.ErrAborted,
		proto.ErrMemoryLimitExceeded, proto.ErrTableIsReadOnly, proto.ErrNotEnoughSpace, proto.ErrUnexpectedZookeeperError,
		proto.ErrTooManyParts, proto.ErrNoActiveReplicas, proto.ErrNoAvailableReplica, proto.ErrAllConnectionTriesFailed,
		proto.ErrTooLessLiveReplicas, proto.ErrUnsatisfiedQuorumForPreviousWrite, proto.ErrReplicaIsNotInQuorum,
		proto.ErrLimitExceeded, proto.ErrShardHasNoConnections, proto.ErrUnknownStatusOfInsert,
		proto.ErrReceivedErrorTooManyRequests, proto.ErrSessionIsLocked, proto.ErrPartIsTemporarilyLocked,
		proto.ErrQueryWasCancelled, proto.ErrSystemError, proto.ErrCannotScheduleTask, proto.ErrDeadlockAvoided,
		proto.ErrS3Error, proto.ErrNoRemoteShardAvailable, proto.ErrDistributedTooManyPendingBytes,
		proto.ErrThreadWasCanceled, proto.ErrTooManyMutations, proto.ErrAsyncLoadFailed,
		proto.ErrCannotWriteAfterBufferCanceled, proto.ErrKeeperException, proto.ErrPocoException,
	},
	// Schema, rights or configuration: an operator must mend it.
	flow.ClassHalt: {
		proto.ErrNoSuchColumnInTable, proto.ErrNumberOfColumnsDoesntMatch, proto.ErrBadArguments,
		proto.ErrUnknownIdentifier, proto.ErrUnknownTable, proto.ErrSyntaxError, proto.ErrUnknownDatabase,
		proto.ErrUnknownSetting, proto.ErrReadonly, proto.ErrUnknownUser, proto.ErrWrongPassword,
		proto.ErrRequiredPassword, proto.ErrIPAddressNotAllowed, proto.ErrTableIsDropped, proto.ErrDatabaseAccessDenied,
		proto.ErrSupportIsDisabled, proto.ErrQueryIsProhibited, proto.ErrAccessDenied, proto.ErrAuthenticationFailed,
	},
	// A value: it will be refused again.
	flow.ClassPoison: {
		proto.ErrCannotParseText, proto.ErrCannotParseEscapeSequence, proto.ErrCannotParseQuotedString,
		proto.ErrCannotParseInputAssertionFailed, proto.ErrCannotParseDate, proto.ErrCannotParseDatetime,
		proto.ErrIllegalTypeOfArgument, proto.ErrIllegalColumn, proto.ErrTypeMismatch, proto.ErrArgumentOutOfBound,
		proto.ErrCannotConvertType, proto.ErrCannotParseNumber, proto.ErrIncorrectData, proto.ErrTooLargeStringSize,
		proto.ErrTooManyBytes, proto.ErrValueIsOutOfRangeOfDataType, proto.ErrCannotInsertNullInOrdinaryColumn,
		proto.ErrFunctionThrowIfValueIsNonZero, proto.ErrDecimalOverflow, proto.ErrViolatedConstraint,
	},
}

var classNames = map[flow.Class]string{
	flow.ClassUnknown: "unknown",
	flow.ClassRetry:   "retry",
	flow.ClassHalt:    "halt",
	flow.ClassPoison:  "poison",
}

// classOf is classes the other way round.
var classOf = func() map[proto.Error]flow.Class {
	m := map[proto.Error]flow.Class{}
	for class, codes := range classes {
		for _, code := range codes {
			m[code] = class
		}
	}
	return m
}()

// storeError gives err its class. An error of ClassPoison keeps the name of
// the error but not the message of the server, which may quote a value.
func storeError(doing string, err error) *flow.StoreError {
	e := &flow.StoreError{Class: classOfTransport(err), Err: fmt.Errorf("%s: %w", doing, err)}
	code, message, answered := exception(err)
	if !answered {
		var network *net.OpError
		e.Unreached = e.Class == flow.ClassRetry && (errors.Is(err, errUnreached) || errors.As(err, &network) && network.Op == "dial")
		e.Slow = !e.Unreached && errors.Is(err, context.DeadlineExceeded)
		return e
	}
	e.Code, e.Class = int(code), classOf[code]
	e.Large = code == proto.ErrMemoryLimitExceeded || code == proto.ErrCannotAllocateMemory
	e.Slow = code == proto.ErrTimeoutExceeded
	if code == proto.ErrTooManyParts && strings.Contains(message, "Too many partitions for single INSERT block") {
		e.Class = flow.ClassPoison
	}
	if e.Class == flow.ClassPoison {
		e.Err = fmt.Errorf("%s: ClickHouse refuses the data: %w", doing, code)
	}
	return e
}

// exception is the answer of ClickHouse within err, if it is one, by either driver.
func exception(err error) (code proto.Error, message string, ok bool) {
	if x, ok := ch.AsException(err); ok {
		return x.Code, x.Message, true
	}
	var x *clickhouse.Exception
	if errors.As(err, &x) {
		return proto.Error(x.Code), x.Message, true
	}
	return 0, "", false
}

// classOfTransport is the class of an error that is not an answer of
// ClickHouse.
func classOfTransport(err error) flow.Class {
	var network net.Error
	var certificate *tls.CertificateVerificationError
	var unknownAuthority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var notTLS tls.RecordHeaderError
	var errno syscall.Errno
	switch {
	case errors.As(err, &certificate), errors.As(err, &unknownAuthority), errors.As(err, &hostname), errors.As(err, &notTLS):
		return flow.ClassHalt
	case errors.As(err, &network), errors.As(err, &errno),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrShortWrite), errors.Is(err, io.ErrClosedPipe),
		errors.Is(err, net.ErrClosed), errors.Is(err, ch.ErrClosed), errors.Is(err, errClosed),
		errors.Is(err, clickhouse.ErrAcquireConnTimeout), errors.Is(err, clickhouse.ErrConnectionClosed),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return flow.ClassRetry
	}
	return flow.ClassUnknown
}

// Passing tells whether err may pass by itself, so that it is worth trying
// again: ClickHouse is away, or too busy.
func Passing(err error) bool { return storeError("try", err).Class == flow.ClassRetry }
