package change

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Entry is the stored state of a target.
type Entry struct {
	Target    Target          `json:"target"`
	Doc       json.RawMessage `json:"doc,omitempty"`      // JSON object: the user without its secrets, or the field; empty when deleted
	Deleted   bool            `json:"deleted,omitempty"`  // a tombstone
	DeletedAt time.Time       `json:"deletedAt,omitzero"` // of the tombstone
	DeletedBy string          `json:"deletedBy,omitempty"`
	UpdatedAt time.Time       `json:"updatedAt"`        // when the api received the last change
	UpdatedBy string          `json:"updatedBy"`        // subject of the token that asked for it
	ID        string          `json:"id,omitempty"`     // of the change that made this state; empty before the first
	Recent    []Outcome       `json:"recent,omitempty"` // of the last conditional changes, oldest first
	Place                     // of the last change, ignored or not; zero before the first
}

// Outcome is the outcome of a conditional change.
type Outcome struct {
	ID      string `json:"id"`                // of the change
	Ignored bool   `json:"ignored,omitempty"` // it met another state than its condition
}

// maxRecent bounds the outcomes of an entry: more than arrive while an api waits for its
// own.
const maxRecent = 8

// Place is the position of a change in lane 0. Sequences restart in another incarnation.
type Place struct {
	Incarnation uint64 `json:"incarnation,omitempty"` // of the lane, ms
	Seq         uint64 `json:"seq"`                   // stream sequence
}

func (p Place) Before(q Place) bool {
	if p.Incarnation != q.Incarnation {
		return p.Incarnation < q.Incarnation
	}
	return p.Seq < q.Seq
}

// Last is the newest change of a target that the stream still holds.
type Last struct {
	Seq     uint64 // its sequence, which the next change may expect; 0 if none
	Applied Place  // an entry that is not before this place includes it
	Unread  bool   // no ingester has read the lane yet: Applied is unknown
}

// Apply returns the next entry of a target. It is pure: the same changes in the same order
// give the same entries, even if some are repeated. For a change at or before the entry's
// Place, applied is false and the entry unchanged.
//
// Place advances with every change, even one without effect, since conditional requests
// compare it with the stream. A conditional change that meets another state than it was
// decided on is ignored: after a restore its expected sequence may be another change's.
//
// The error is a *BadChangeError, or reports a corrupt entry. Applying a change to
// the current entry before publishing predicts whether it fits.
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
	case c.ID != "" && c.ID == e.ID: // the lane has it twice; it already made this state
		next = e
		next.Recent, next.Place = recent, at
	case c.Kind == UserPatched:
		if next.Doc, err = patchUser(e.Doc, &c); err != nil {
			return e, false, fmt.Errorf("patch user: %w", err)
		}
	case c.Kind == FieldPut:
		next.Doc = c.Body
	case e.Deleted: // repeated: the tombstone stays
		next = e
		next.Recent, next.Place = recent, at
	default:
		next.Deleted, next.DeletedAt, next.DeletedBy = true, c.At, c.By
	}
	if len(next.Doc) > MaxBody {
		return e, false, &BadChangeError{Code: "document_too_large", Reason: "the resulting document would exceed its limit"}
	}
	return next, true, nil
}

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
	before, err := parseStored(stored) // merge changes doc
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

// keepAuthority restores the authority of stored projects in a patched document, by id: an
// array replaces whole, except for what its author may not set. A second project of the
// same id gets none.
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

func (e Entry) Encode() ([]byte, error) { return encode(e) }

func DecodeEntry(value []byte) (Entry, error) {
	var e Entry
	if err := json.Unmarshal(value, &e); err != nil {
		return Entry{}, errors.New("the entry is not valid JSON")
	}
	return e, nil
}

// ETag is the entity tag (RFC 9110) of this state. It names the change that made it, not
// its sequence, which another change has after a restore.
func (e Entry) ETag() string {
	if e.ID == "" {
		return `"0"`
	}
	return `"` + e.ID + `"`
}

// Outcome returns the outcome of a conditional change; known is false before it arrives
// and after maxRecent later ones.
func (e Entry) Outcome(id string) (ignored, known bool) {
	i := slices.IndexFunc(e.Recent, func(o Outcome) bool { return o.ID == id })
	return i >= 0 && e.Recent[i].Ignored, i >= 0
}

// User is the user as shown: secrets masked, id filled in. Without an entry it is only
// the id.
func (e Entry) User(subject string) (json.RawMessage, error) {
	doc, err := parseStored(e.Doc)
	if err != nil {
		return nil, fmt.Errorf("user: %w", err)
	}
	mask(doc)
	doc["id"] = subject
	return encode(doc)
}

// DatasetField is the field as put, with its id and tableId; false if it does not exist
// or was deleted.
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
