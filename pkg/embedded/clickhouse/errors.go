package clickhouse

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// codes are those that this package itself raises, by their names in ClickHouse.
var codes = map[string]int{
	"BAD_ARGUMENTS":                 36,
	"CANNOT_READ_ALL_DATA":          33,
	"CHECKSUM_DOESNT_MATCH":         40,
	"NOT_IMPLEMENTED":               48,
	"SYNTAX_ERROR":                  62,
	"UNKNOWN_COMPRESSION_METHOD":    89,
	"UNEXPECTED_PACKET_FROM_CLIENT": 101,
	"UNKNOWN_SETTING":               115,
	"READONLY":                      164,
	"INCORRECT_DATA":                117,
	"REQUIRED_PASSWORD":             194,
	"TOO_MANY_SIMULTANEOUS_QUERIES": 202,
	"CANNOT_DECOMPRESS":             271,
	"SESSION_NOT_FOUND":             372,
	"SESSION_IS_LOCKED":             373,
	"INVALID_SESSION_TIMEOUT":       374,
	"QUERY_WAS_CANCELLED":           394,
	"QUERY_IS_TOO_LARGE":            229,
	"ACCESS_DENIED":                 497,
	"AUTHENTICATION_FAILED":         516,
	"STD_EXCEPTION":                 1001,
}

// Exception is an error of ClickHouse, with its code.
type Exception struct {
	Code    int    // https://github.com/ClickHouse/ClickHouse/blob/master/src/Common/ErrorCodes.cpp
	Message string // "DB::Exception: … (NAME)"
}

func (e *Exception) Error() string { return fmt.Sprintf("Code: %d. %s", e.Code, e.Message) }

var (
	exceptionText = regexp.MustCompile(`(?s)^Code: (\d+)\. (.*)$`)
	exceptionName = regexp.MustCompile(`\(([A-Z][A-Z0-9_]*)\)$`)
	versionSuffix = regexp.MustCompile(`\s*\(version [^()]*(?:\([^()]*\))?\)\s*$`)
)

// parseException reads what the engine reports as the text of an error.
func parseException(text string) *Exception {
	text = strings.TrimSpace(versionSuffix.ReplaceAllString(text, ""))
	match := exceptionText.FindStringSubmatch(text)
	if match == nil {
		return &Exception{Code: codes["STD_EXCEPTION"], Message: "DB::Exception: " + text}
	}
	code, err := strconv.Atoi(match[1])
	if err != nil {
		code = codes["STD_EXCEPTION"]
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
	return exceptionf("STD_EXCEPTION", "%v", err)
}

// exceptionf is an Exception of one of the codes.
func exceptionf(name, format string, args ...any) *Exception {
	return &Exception{Code: codes[name], Message: "DB::Exception: " + fmt.Sprintf(format, args...) + " (" + name + ")"}
}

// Name is ClickHouse's name for the code, or "" if the message does not end with it.
func (e *Exception) Name() string {
	if match := exceptionName.FindStringSubmatch(e.Message); match != nil {
		return match[1]
	}
	return ""
}

// statuses are the HTTP statuses a ClickHouse server answers its exceptions
// with. Every one that is not here is a 500.
var statuses = map[int]string{
	http.StatusUnauthorized: "REQUIRED_PASSWORD",
	http.StatusForbidden:    "UNKNOWN_USER WRONG_PASSWORD AUTHENTICATION_FAILED SET_NON_GRANTED_ROLE ACCESS_DENIED",
	http.StatusBadRequest: "BAD_ARGUMENTS CANNOT_COMPILE_REGEXP CANNOT_PARSE_TEXT CANNOT_PARSE_ESCAPE_SEQUENCE " +
		"CANNOT_PARSE_QUOTED_STRING CANNOT_PARSE_DATE CANNOT_PARSE_DATETIME CANNOT_PARSE_NUMBER " +
		"CANNOT_PARSE_DOMAIN_VALUE_FROM_STRING CANNOT_PARSE_IPV4 CANNOT_PARSE_IPV6 CANNOT_PARSE_INPUT_ASSERTION_FAILED " +
		"CANNOT_PARSE_UUID DUPLICATE_COLUMN ILLEGAL_COLUMN UNKNOWN_ELEMENT_IN_AST UNKNOWN_TYPE_OF_AST_NODE THERE_IS_NO_COLUMN " +
		"TOO_DEEP_AST TOO_BIG_AST UNEXPECTED_AST_STRUCTURE SYNTAX_ERROR INCORRECT_DATA TYPE_MISMATCH VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE",
	http.StatusNotFound: "UNKNOWN_TABLE UNKNOWN_FUNCTION UNKNOWN_IDENTIFIER UNKNOWN_TYPE UNKNOWN_STORAGE UNKNOWN_DATABASE " +
		"UNKNOWN_SETTING UNKNOWN_DIRECTION_OF_SORTING UNKNOWN_AGGREGATE_FUNCTION UNKNOWN_FORMAT UNKNOWN_DATABASE_ENGINE " +
		"UNKNOWN_TYPE_OF_QUERY UNKNOWN_ROLE",
	http.StatusRequestEntityTooLarge: "QUERY_IS_TOO_LARGE",
	http.StatusNotImplemented:        "NOT_IMPLEMENTED",
	http.StatusServiceUnavailable:    "SOCKET_TIMEOUT CANNOT_OPEN_FILE CANNOT_SCHEDULE_TASK",
	http.StatusLengthRequired:        "HTTP_LENGTH_REQUIRED",
	http.StatusRequestTimeout:        "TIMEOUT_EXCEEDED",
	http.StatusUnsupportedMediaType:  "UNSUPPORTED_MEDIA_TYPE",
}

func httpStatus(exception *Exception) int {
	name := exception.Name()
	for status, names := range statuses {
		if slices.Contains(strings.Fields(names), name) {
			return status
		}
	}
	return http.StatusInternalServerError
}
