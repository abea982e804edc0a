package clickhouse

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// Codes of ClickHouse that this package itself raises.
const (
	codeSyntaxError      = 62
	codeUnknownSetting   = 115
	codeNotImplemented   = 48
	codeTooManyQueries   = 202
	codeRequiredPassword = 194
	codeAuthentication   = 516
	codeBadArguments     = 36
	codeIncorrectData    = 117
	codeCancelled        = 394
	codeUnexpectedPacket = 101
	codeQueryTooLarge    = 165
	codeStdException     = 1001
)

// Exception is an error of ClickHouse, with its code.
type Exception struct {
	Code    int    // https://github.com/ClickHouse/ClickHouse/blob/master/src/Common/ErrorCodes.cpp
	Message string // "DB::Exception: … (NAME)"
}

func (e *Exception) Error() string { return fmt.Sprintf("Code: %d. %s", e.Code, e.Message) }

var (
	exceptionText = regexp.MustCompile(`(?s)^Code: (\d+)\. (.*)$`)
	versionSuffix = regexp.MustCompile(`\s*\(version [^()]*(?:\([^()]*\))?\)\s*$`)
)

// parseException reads what the engine reports as the text of an error.
func parseException(text string) *Exception {
	text = strings.TrimSpace(versionSuffix.ReplaceAllString(text, ""))
	match := exceptionText.FindStringSubmatch(text)
	if match == nil {
		return &Exception{Code: codeStdException, Message: "DB::Exception: " + text}
	}
	code, err := strconv.Atoi(match[1])
	if err != nil {
		code = codeStdException
	}
	message := match[2]
	// What a part of the engine that is its own client reports is wrapped once
	// more: Code: 6. DB::Exception: Code: 6. DB::Exception: … (version …). (NAME)
	if inner, ok := strings.CutPrefix(message, "DB::Exception: Code: "+match[1]+". "); ok {
		message = inner
		if at := strings.LastIndex(message, " (version "); at > 0 {
			message = message[:at]
		}
	}
	return &Exception{Code: code, Message: message}
}

// asException is err as ClickHouse would put it.
func asException(err error) *Exception {
	var exception *Exception
	if errors.As(err, &exception) {
		return exception
	}
	return &Exception{Code: codeStdException, Message: "DB::Exception: " + err.Error() + " (STD_EXCEPTION)"}
}

// exceptionf is an Exception with ClickHouse's name for its code.
func exceptionf(code int, name, format string, args ...any) *Exception {
	return &Exception{Code: code, Message: "DB::Exception: " + fmt.Sprintf(format, args...) + " (" + name + ")"}
}

// statuses are the HTTP statuses a ClickHouse server answers its codes with.
// Every code that is not here is a 500.
var statuses = map[int]int{
	194: http.StatusUnauthorized,                                                                               // REQUIRED_PASSWORD
	192: http.StatusForbidden, 193: http.StatusForbidden, 516: http.StatusForbidden, 497: http.StatusForbidden, // UNKNOWN_USER, WRONG_PASSWORD, AUTHENTICATION_FAILED, ACCESS_DENIED
	512: http.StatusForbidden,                                                                                  // SET_NON_GRANTED_ROLE
	6:   http.StatusBadRequest, 8: http.StatusBadRequest, 10: http.StatusBadRequest, 15: http.StatusBadRequest, // CANNOT_PARSE_TEXT, THERE_IS_NO_COLUMN, …, DUPLICATE_COLUMN
	25: http.StatusBadRequest, 26: http.StatusBadRequest, 27: http.StatusBadRequest, 36: http.StatusBadRequest, // CANNOT_PARSE_ESCAPE_SEQUENCE, _QUOTED_STRING, _INPUT_ASSERTION_FAILED, BAD_ARGUMENTS
	38: http.StatusBadRequest, 41: http.StatusBadRequest, 44: http.StatusBadRequest, 53: http.StatusBadRequest, // CANNOT_PARSE_DATE, _DATETIME, ILLEGAL_COLUMN, TYPE_MISMATCH
	62: http.StatusBadRequest, 72: http.StatusBadRequest, 117: http.StatusBadRequest, 167: http.StatusBadRequest, // SYNTAX_ERROR, CANNOT_PARSE_NUMBER, INCORRECT_DATA, TOO_DEEP_AST
	168: http.StatusBadRequest, 169: http.StatusBadRequest, 170: http.StatusBadRequest, 171: http.StatusBadRequest, // TOO_BIG_AST, UNKNOWN_TYPE_OF_AST_NODE, UNEXPECTED_AST_STRUCTURE, UNKNOWN_ELEMENT_IN_AST
	321: http.StatusBadRequest, 376: http.StatusBadRequest, 427: http.StatusBadRequest, // VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE, CANNOT_PARSE_UUID, CANNOT_COMPILE_REGEXP
	675: http.StatusBadRequest, 676: http.StatusBadRequest, // CANNOT_PARSE_IPV4, _IPV6
	46: http.StatusNotFound, 47: http.StatusNotFound, 50: http.StatusNotFound, 56: http.StatusNotFound, // UNKNOWN_FUNCTION, _IDENTIFIER, _TYPE, _STORAGE
	60: http.StatusNotFound, 63: http.StatusNotFound, 73: http.StatusNotFound, 78: http.StatusNotFound, // UNKNOWN_TABLE, _AGGREGATE_FUNCTION, _FORMAT, _TYPE_OF_QUERY
	81: http.StatusNotFound, 115: http.StatusNotFound, 336: http.StatusNotFound, 511: http.StatusNotFound, // UNKNOWN_DATABASE, _SETTING, _DATABASE_ENGINE, _ROLE
	48:  http.StatusNotImplemented,                                                                             // NOT_IMPLEMENTED
	159: http.StatusRequestTimeout,                                                                             // TIMEOUT_EXCEEDED
	76:  http.StatusServiceUnavailable, 209: http.StatusServiceUnavailable, 439: http.StatusServiceUnavailable, // CANNOT_OPEN_FILE, SOCKET_TIMEOUT, CANNOT_SCHEDULE_TASK
	165: http.StatusRequestEntityTooLarge, // QUERY_IS_TOO_LARGE
}

func httpStatus(code int) int {
	if status, ok := statuses[code]; ok {
		return status
	}
	return http.StatusInternalServerError
}
