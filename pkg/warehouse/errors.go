package warehouse

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"
	"github.com/ClickHouse/clickhouse-go/v2"

	"sluice/pkg/flow"
)

// classes maps ClickHouse's error codes to classes. After any of them the outcome is unknown, since a materialized view may
// have failed after the table and other views took the block: only the same block with the same token may be sent again.
// Other codes are ClassUnknown.
var classes = map[flow.Class][]proto.Error{
	// Server, network, or load: temporary.
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
	// Schema, rights, or configuration: an operator must fix it.
	flow.ClassHalt: {
		proto.ErrNoSuchColumnInTable, proto.ErrNumberOfColumnsDoesntMatch, proto.ErrBadArguments,
		proto.ErrUnknownIdentifier, proto.ErrUnknownTable, proto.ErrSyntaxError, proto.ErrUnknownDatabase,
		proto.ErrUnknownSetting, proto.ErrReadonly, proto.ErrUnknownUser, proto.ErrWrongPassword,
		proto.ErrRequiredPassword, proto.ErrIPAddressNotAllowed, proto.ErrTableIsDropped, proto.ErrDatabaseAccessDenied,
		proto.ErrSupportIsDisabled, proto.ErrQueryIsProhibited, proto.ErrAccessDenied, proto.ErrAuthenticationFailed,
	},
	// A value: permanently rejected.
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

// classOf is the inverse of classes.
var classOf = func() map[proto.Error]flow.Class {
	m := map[proto.Error]flow.Class{}
	for class, codes := range classes {
		for _, code := range codes {
			m[code] = class
		}
	}
	return m
}()

// storeError classifies err. An error of ClassPoison keeps the name of the error but not the server's message, which may quote
// a value.
func storeError(doing string, err error) *flow.StoreError {
	e := &flow.StoreError{Class: classOfTransport(err), Err: fmt.Errorf("%s: %w", doing, err)}
	code, message, answered := exception(err)
	if !answered {
		if e.Class == flow.ClassRetry && !errors.Is(err, context.Canceled) {
			e.Err = fmt.Errorf("%s: %w", doing, unanswered{err})
		}
		var network *net.OpError
		e.Unreached = e.Class == flow.ClassRetry && (errors.Is(err, errUnreached) || errors.As(err, &network) && network.Op == "dial")
		e.Slow = !e.Unreached && errors.Is(err, context.DeadlineExceeded)
		return e
	}
	e.Code, e.Class = int(code), classOf[code]
	e.Large = code == proto.ErrMemoryLimitExceeded || code == proto.ErrCannotAllocateMemory
	e.Slow = code == proto.ErrTimeoutExceeded
	e.InView = strings.Contains(message, "while pushing to view ")
	if code == proto.ErrTooManyParts && strings.Contains(message, "Too many partitions for single INSERT block") {
		e.Class = flow.ClassPoison
	}
	if e.Class == flow.ClassPoison {
		e.Err = fmt.Errorf("%s: ClickHouse rejects the data: %w", doing, code)
	}
	return e
}

// unanswered is an error of the connection, in words for an operator: without the driver's
// layers, which name packets and handshakes.
type unanswered struct{ error }

func (u unanswered) Unwrap() error { return u.error }

func (u unanswered) Error() string {
	text, cause := "ClickHouse does not answer", u.error
	var at *net.OpError
	if errors.As(u.error, &at) && at.Addr != nil {
		text += " (" + at.Addr.String() + ")"
	}
	var errno syscall.Errno
	var name *net.DNSError
	var timed net.Error
	switch {
	case errors.As(u.error, &errno):
		cause = errno
	case errors.As(u.error, &name):
		cause = name
	case errors.Is(u.error, context.DeadlineExceeded), errors.As(u.error, &timed) && timed.Timeout():
		return text + ": timeout"
	case errors.Is(u.error, io.EOF), errors.Is(u.error, io.ErrUnexpectedEOF), errors.Is(u.error, net.ErrClosed):
		return text + ": it closed the connection"
	}
	return text + ": " + cause.Error()
}

// exception extracts ClickHouse's exception from err, of either driver.
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

// classOfTransport is the class of an error that is not an exception of ClickHouse.
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

// Passing reports whether err is temporary, so that a retry may succeed: ClickHouse is unreachable or overloaded.
func Passing(err error) bool { return storeError("try", err).Class == flow.ClassRetry }
