package change

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// MergePatch applies an RFC 7396 merge patch to a document: members of the
// patch replace those of the document, objects are merged, null removes and
// everything else, arrays too, replaces whole. Numbers keep their text. An
// empty doc counts as absent.
//
// A patch touches only the members it names: two patches of different members
// give the same document in either order.
func MergePatch(doc, patch json.RawMessage) (json.RawMessage, error) {
	var target any
	if len(doc) > 0 {
		var err error
		if target, err = parse(doc); err != nil {
			return nil, fmt.Errorf("document: %w", err)
		}
	}
	p, err := parse(patch)
	if err != nil {
		return nil, fmt.Errorf("patch: %w", err)
	}
	return encode(merge(target, p))
}

// merge is the algorithm of RFC 7396 section 2. It builds upon target.
func merge(target, patch any) any {
	p, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	t, ok := target.(map[string]any)
	if !ok {
		t = make(map[string]any, len(p))
	}
	for name, v := range p {
		if v == nil {
			delete(t, name)
		} else {
			t[name] = merge(t[name], v)
		}
	}
	return t
}

// What the audit keeps of the members of a change: enough of every honest
// request, and bounded for the others.
const (
	maxMembers    = 256 // names
	maxMemberName = 128 // bytes of a name
)

// memberNames lists the names of an object's members, sorted. Longer names
// are cut, further ones left out; "…" stands where that happened.
func memberNames(object map[string]any) []string {
	names := slices.Sorted(maps.Keys(object))
	more := len(names) > maxMembers
	names = names[:min(len(names), maxMembers)]
	for i, name := range names {
		names[i] = cut(name, maxMemberName)
	}
	if more {
		names = append(names, "…")
	}
	return names
}
