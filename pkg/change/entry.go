package change

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Entry is the state of a target, as the state store keeps it.
type Entry struct {
	Target    Target          `json:"target"`
	Doc       json.RawMessage `json:"doc,omitempty"`      // JSON object: the user without its secrets, or the field; empty when deleted
	Deleted   bool            `json:"deleted,omitempty"`  // a tombstone
	DeletedAt time.Time       `json:"deletedAt,omitzero"` // of the tombstone
	DeletedBy string          `json:"deletedBy,omitempty"`
	UpdatedAt time.Time       `json:"updatedAt"`        // when the last change was taken in
	UpdatedBy string          `json:"updatedBy"`        // who asked for it
	ID        string          `json:"id,omitempty"`     // of the change that made it what it is; empty before the first
	Recent    []Outcome       `json:"recent,omitempty"` // of the last conditional changes, oldest first
	Place                     // of the last change that came, ignored or not; zero before the first
}

// Outcome is what became of a conditional change.
type Outcome struct {
	ID      string `json:"id"`                // of the change
	Ignored bool   `json:"ignored,omitempty"` // it was decided on another state than it found
}

// maxRecent is how many outcomes an entry keeps: more than come while one api looks
// for that of its change.
const maxRecent = 8

// Place is the position of a change in lane 0 of the stream. Sequences begin anew in
// another incarnation.
type Place struct {
	Incarnation uint64 `json:"incarnation,omitempty"` // of the lane, ms
	Seq         uint64 `json:"seq"`                   // stream sequence
}

// Before says whether p comes before q.
func (p Place) Before(q Place) bool {
	if p.Incarnation != q.Incarnation {
		return p.Incarnation < q.Incarnation
	}
	return p.Seq < q.Seq
}

// Last is the newest change of a target that the stream still holds.
type Last struct {
	Seq     uint64 // its sequence, which the next change may expect; 0 when there is none
	Applied Place  // an entry that is not before this place has it
	Unread  bool   // no ingester has begun to read the lane: Applied is not known yet
}

// Apply makes the next entry of a target: pure, so that the same changes in
// the same order give the same entries, however often some of them come. A
// change at or before the entry's Place is in it already; then applied is false
// and the entry is the same.
//
// Place follows every change, also one that leaves the document as it was:
// conditional requests compare it with the stream. A conditional change that finds
// another state than the one it was decided on is ignored: the sequence that it
// expected was there, and of another change, as after a restore.
//
// The error is a *BadChangeError, or says that the entry itself is damaged.
// Applying a change to the current entry before it is published tells early
// whether it will fit.
func Apply(e Entry, c Change, at Place) (next Entry, applied bool, err error) {
	if !e.Place.Before(at) {
		return e, false, nil
	}
	if err := c.check(); err != nil {
		return e, false, err
	}
	recent := e.Recent
	if c.Base != nil {
		ignored := *c.Base != e.ID && c.ID != e.ID
		recent = append(slices.Clone(recent[max(0, len(recent)-maxRecent+1):]), Outcome{c.ID, ignored})
		if ignored {
			e.Target, e.Recent, e.Place = c.Target, recent, at
			return e, true, nil
		}
	}
	next = Entry{Target: c.Target, UpdatedAt: c.At, UpdatedBy: c.By, ID: c.ID, Recent: recent, Place: at}
	switch {
	case c.ID != "" && c.ID == e.ID: // it is in the lane twice, and made this state already
		next = e
		next.Recent, next.Place = recent, at
	case c.Kind == UserPatched:
		if next.Doc, err = patchUser(e.Doc, &c); err != nil {
			return e, false, fmt.Errorf("patch user: %w", err)
		}
	case c.Kind == FieldPut:
		next.Doc = c.Body
	case e.Deleted: // again: the tombstone stands as it was
		next = e
		next.Recent, next.Place = recent, at
	default:
		next.Deleted, next.DeletedAt, next.DeletedBy = true, c.At, c.By
	}
	if len(next.Doc) > MaxBody {
		return e, false, &BadChangeError{Code: "document_too_large", Reason: "the document would grow beyond its limit"}
	}
	return next, true, nil
}

// patchUser applies a patch to the stored document of a user.
func patchUser(stored json.RawMessage, c *Change) (json.RawMessage, error) {
	patch, err := parseObject(c.Body)
	if err != nil {
		return nil, err
	}
	withoutAuthority(patch, c.Admin)
	doc, err := parseStored(stored)
	if err != nil {
		return nil, err
	}
	before, err := parseStored(stored) // merge builds upon doc
	if err != nil {
		return nil, err
	}
	merge(doc, patch)
	if !c.Admin {
		for _, name := range projectsOf(patch) {
			keepAuthority(doc, before, name)
		}
	}
	unmask(doc, before)
	return encode(doc)
}

// keepAuthority gives the projects of a patched document what the stored
// projects of the same id had: an array replaces whole, but not what its
// author may not set. A second project of the same id gets nothing.
func keepAuthority(doc, stored map[string]any, name string) {
	before := byID(stored[name])
	projects, _ := doc[name].([]any)
	for _, project := range projects {
		was, ok := before[idOf(project)].(map[string]any)
		if !ok {
			continue
		}
		delete(before, idOf(project))
		for name, v := range was {
			if isAuthority(name, projectAuthority) {
				project.(map[string]any)[name] = v
			}
		}
	}
}

// Encode gives the entry as the state store keeps it.
func (e Entry) Encode() ([]byte, error) { return encode(e) }

// DecodeEntry reads what Encode wrote.
func DecodeEntry(value []byte) (Entry, error) {
	var e Entry
	if err := json.Unmarshal(value, &e); err != nil {
		return Entry{}, errors.New("the entry is not valid")
	}
	return e, nil
}

// ETag is the entity tag (RFC 9110) of this state of the target. It names the change
// that made it, not its number: after a restore another change has that.
func (e Entry) ETag() string {
	if e.ID == "" {
		return `"0"`
	}
	return `"` + e.ID + `"`
}

// Outcome tells what became of a conditional change; known is false as long as it has
// not come, and again once many others have.
func (e Entry) Outcome(id string) (ignored, known bool) {
	i := slices.IndexFunc(e.Recent, func(o Outcome) bool { return o.ID == id })
	return i >= 0 && e.Recent[i].Ignored, i >= 0
}

// User is the user as it may be shown: secrets masked, id filled in. A user
// without an entry has nothing but the id.
func (e Entry) User(subject string) (json.RawMessage, error) {
	doc, err := parseStored(e.Doc)
	if err != nil {
		return nil, fmt.Errorf("user: %w", err)
	}
	mask(doc)
	doc["id"] = subject
	return encode(doc)
}

// DatasetField is the field as it was put, with its id and tableId; false when
// there is none, or it was deleted.
func (e Entry) DatasetField() (json.RawMessage, bool) {
	return e.Doc, len(e.Doc) > 0
}

func parseStored(doc json.RawMessage) (map[string]any, error) {
	if len(doc) == 0 {
		return map[string]any{}, nil
	}
	v, err := parse(doc)
	object, ok := v.(map[string]any)
	if err == nil && !ok {
		err = errors.New("the stored document is not an object")
	}
	return object, err
}
