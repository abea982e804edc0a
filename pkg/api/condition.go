package api

import (
	"net/http"
	"strings"
)

// condition is what a request demands of the state it finds (RFC 9110, 13).
type condition struct {
	match, noneMatch []string // entity tags, or "*" alone; nil: nothing demanded
}

func conditionOf(h http.Header) condition {
	return condition{tags(h["If-Match"]), tags(h["If-None-Match"])}
}

// tags splits a list of entity tags. Ours hold no comma.
func tags(values []string) []string {
	var list []string
	for _, value := range values {
		for _, tag := range strings.Split(value, ",") {
			if tag = strings.Trim(tag, " \t"); tag != "" {
				list = append(list, tag)
			}
		}
	}
	return list
}

// none tells whether nothing is demanded.
func (c condition) none() bool { return c.match == nil && c.noneMatch == nil }

// check refuses a write whose conditions the state does not meet. A weak tag
// never meets If-Match.
func (c condition) check(now *remembered) error {
	if now.behind && !c.none() {
		return errBehind
	}
	if c.match != nil && !matches(c.match, now, false) {
		return refuse(codeConditionFailed, "it is not as If-Match demands; read it again")
	}
	if c.noneMatch != nil && matches(c.noneMatch, now, true) {
		return refuse(codeConditionFailed, "it is as If-None-Match rules out")
	}
	return nil
}

// unmodified tells whether the reader has this state already.
func (c condition) unmodified(now *remembered) bool {
	return c.noneMatch != nil && matches(c.noneMatch, now, true)
}

func matches(tags []string, now *remembered, weak bool) bool {
	if !now.exists() {
		return false
	}
	etag := now.ETag()
	for _, tag := range tags {
		if weak {
			tag = strings.TrimPrefix(tag, "W/")
		}
		if tag == "*" || tag == etag {
			return true
		}
	}
	return false
}
