package library

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// codes are the error codes that the server package raises, by ClickHouse's names.
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
	"QUOTA_EXCEEDED":                201,
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

// ParseException parses an error text of the engine.
func ParseException(text string) *Exception {
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
	// Errors of engine parts that are clients of the engine are wrapped once
	// more: Code: 6. DB::Exception: Code: 6. DB::Exception: … (version …). (NAME)
	if inner, ok := strings.CutPrefix(message, "DB::Exception: Code: "+match[1]+". "); ok {
		message = inner
		if at := strings.LastIndex(message, " (version "); at > 0 {
			message = message[:at]
		}
	}
	return &Exception{Code: code, Message: message}
}

// AsException converts err to an Exception.
func AsException(err error) *Exception {
	var exception *Exception
	if errors.As(err, &exception) {
		return exception
	}
	return Exceptionf("STD_EXCEPTION", "%v", err)
}

// Exceptionf formats an Exception of one of the codes.
func Exceptionf(name, format string, args ...any) *Exception {
	return &Exception{Code: codes[name], Message: "DB::Exception: " + fmt.Sprintf(format, args...) + " (" + name + ")"}
}

// Name is ClickHouse's name for the code, or "" if the message does not end with it.
func (e *Exception) Name() string {
	if match := exceptionName.FindStringSubmatch(e.Message); match != nil {
		return match[1]
	}
	return ""
}
