package server

import (
	"net/http"
	"slices"
	"strings"

	"sluice/pkg/embedded/clickhouse/library"
)

// statuses are the HTTP statuses of ClickHouse's exceptions; others are 500.
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

func httpStatus(exception *library.Exception) int {
	name := exception.Name()
	for status, names := range statuses {
		if slices.Contains(strings.Fields(names), name) {
			return status
		}
	}
	return http.StatusInternalServerError
}
