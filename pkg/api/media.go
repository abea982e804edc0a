package api

import (
	"mime"
	"net/http"
	"strconv"
	"strings"

	"sluice/pkg/record"
)

// formOf tells how the records of a body are written.
func formOf(h http.Header) (record.Form, error) {
	values := h["Content-Type"]
	if len(values) == 0 || values[0] == "application/json" {
		return record.FormAuto, nil // who says nothing means what the specification says
	}
	switch mediaType(values[0]) {
	case "application/json":
		return record.FormAuto, nil
	case "application/x-ndjson", "application/ndjson", "application/jsonl":
		return record.FormNDJSON, nil
	}
	return 0, refuse(codeUnsupportedType, "records are taken as application/json or application/x-ndjson, in UTF-8")
}

// mediaType returns the media type in small letters, empty when it is malformed
// or not UTF-8.
func mediaType(value string) string {
	media, params, err := mime.ParseMediaType(value)
	if charset, ok := params["charset"]; err != nil || ok && !strings.EqualFold(charset, "utf-8") {
		return ""
	}
	return media
}

// accepts tells whether the Accept header leaves room for one of the media
// types.
func accepts(h http.Header, offers ...string) bool {
	values := strings.Join(h["Accept"], ",")
	if values == "" || values == "*/*" {
		return true
	}
	for _, choice := range strings.Split(values, ",") {
		media, params, err := mime.ParseMediaType(choice)
		if err != nil {
			continue
		}
		if q, err := strconv.ParseFloat(params["q"], 64); err == nil && q <= 0 {
			continue
		}
		group, _ := strings.CutSuffix(media, "*")
		for _, offer := range offers {
			if media == "*/*" || media == offer || group != media && strings.HasPrefix(offer, group) {
				return true
			}
		}
	}
	return false
}

// prefers tells whether a request prefers this (RFC 7240).
func prefers(h http.Header, name, value string) bool {
	got, ok := preference(h, name)
	return ok && got == value
}

// preference is the value of a preference, whose name is told in any case of
// letters. Of several the first counts.
func preference(h http.Header, name string) (value string, ok bool) {
	for _, values := range h["Prefer"] {
		for _, choice := range strings.Split(values, ",") {
			choice, _, _ = strings.Cut(choice, ";")
			key, value, _ := strings.Cut(choice, "=")
			if strings.EqualFold(strings.TrimSpace(key), name) {
				return strings.Trim(strings.TrimSpace(value), `"`), true
			}
		}
	}
	return "", false
}
