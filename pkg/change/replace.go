package change

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Mask replaces every secret that is read back. Sent in a patch it means: unchanged.
const Mask = "****"

// maxPasswords bounds the passwords of one body: each costs a hash.
const maxPasswords = 16

// secret is the kind of secret that a member name implies.
type secret int

const (
	noSecret secret = iota
	password
	confirmation
	accessSecret
)

func secretOf(name string, v any) secret {
	switch v.(type) {
	case map[string]any, bool:
		return noSecret
	}
	switch {
	case strings.EqualFold(name, "password"):
		return password
	case strings.EqualFold(name, "password1"):
		return confirmation
	case strings.EqualFold(name, "sk"):
		return accessSecret
	}
	return noSecret
}

// placeholder reports whether a value means "unchanged".
func placeholder(v any) bool {
	s, ok := v.(string)
	return ok && (strings.Trim(s, "*") == "" || s == "<PASSWORD>" || s == "<SECRET_KEY>")
}

// copied reports whether v is the specification's placeholder for a member that is not a
// secret here: copied from an example, not meant.
func copied(name string, v any) bool {
	return name == "ak" && v == "<ACCESS_KEY>" || name == "telephone" && v == "<PHONE>"
}

// replace replaces the secrets of a parsed body, in place; passwords by marks, which
// hashAll replaces by hashes.
func (s *Secrets) replace(object map[string]any) (passwords, error) {
	w := replacement{Secrets: s}
	err := w.object(object, false)
	return w.passwords, err
}

// replacement is one walk over one body.
type replacement struct {
	*Secrets
	path      path
	passwords passwords
}

// passwords are those of one body, until they are hashed.
type passwords struct {
	mark  string // prefix of the marks; random, so that no body holds it
	plain []string
}

// add adds a password and returns its mark.
func (p *passwords) add(plain string) string {
	if p.mark == "" {
		var b [16]byte
		rand.Read(b[:])
		p.mark = "password-" + hex.EncodeToString(b[:]) + "-"
	}
	p.plain = append(p.plain, plain)
	return p.markOf(len(p.plain) - 1)
}

// markOf is the mark of the password i. None is a prefix of another.
func (p *passwords) markOf(i int) string { return fmt.Sprintf("%s%02d", p.mark, i) }

// object replaces the secrets among the members of an object and removes unchanged ones.
// Within an array, which replaces whole, the Mask keeps its place until Apply finds the
// secret it stands for.
func (w *replacement) object(object map[string]any, inArray bool) error {
	if err := w.confirm(object); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		v := object[name]
		kind := secretOf(name, v)
		asItWas := kind != noSecret && placeholder(v) && !inArray
		if kind == confirmation || asItWas || copied(name, v) {
			delete(object, name)
			continue
		}
		w.path.in(name)
		replaced, err := w.value(v, kind, inArray)
		w.path.out()
		if err != nil {
			return err
		}
		object[name] = replaced
	}
	return nil
}

// confirm refuses an object whose password1 is not its password.
func (w *replacement) confirm(object map[string]any) error {
	var passwords, confirmations []string
	at := "" // name of the last confirmation
	for name, v := range object {
		text := fmt.Sprint(v)
		if placeholder(v) {
			text = ""
		}
		switch kind := secretOf(name, v); {
		case v == nil:
		case kind == password:
			passwords = append(passwords, text)
		case kind == confirmation:
			confirmations, at = append(confirmations, text), name
		}
	}
	if len(passwords) == 0 || len(confirmations) == 0 {
		return nil
	}
	if all := append(passwords, confirmations...); len(slices.Compact(all)) > 1 {
		w.path.in(at)
		return wrong(w.path.String(), "password_mismatch", "Must be the same as password.")
	}
	return nil
}

// value replaces the secrets of a value that belongs to a member of this kind.
func (w *replacement) value(v any, kind secret, inArray bool) (any, error) {
	switch v := v.(type) {
	case map[string]any:
		return v, w.object(v, inArray)
	case []any:
		for i := range v {
			w.path.at(i)
			replaced, err := w.value(v[i], kind, true)
			w.path.out()
			if err != nil {
				return nil, err
			}
			v[i] = replaced
		}
	case string:
		return w.text(v, kind)
	case json.Number:
		if kind != noSecret {
			return w.text(v.String(), kind)
		}
	}
	return v, nil
}

func (w *replacement) text(s string, kind secret) (any, error) {
	switch {
	case kind == noSecret:
		return s, nil
	case placeholder(s):
		return Mask, nil
	case kind == accessSecret:
		return w.fingerprint(s)
	}
	if len(w.passwords.plain) == maxPasswords {
		return nil, wrong(w.path.String(), "too_many_passwords", fmt.Sprintf("A body may hold at most %d passwords.", maxPasswords))
	}
	return w.passwords.add(s), nil
}

func mask(v any) {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			if member != nil && secretOf(name, member) != noSecret {
				v[name] = Mask
			} else {
				mask(member)
			}
		}
	case []any:
		for _, elem := range v {
			mask(elem)
		}
	}
}

// unmask restores stored secrets where a patch sent masks within an array: doc is the
// patched document, stored the one before. Elements match by id. Masks without a stored
// secret are removed.
func unmask(doc, stored any) {
	switch doc := doc.(type) {
	case map[string]any:
		before, _ := stored.(map[string]any)
		for name, v := range doc {
			if v != Mask || secretOf(name, v) == noSecret {
				unmask(v, before[name])
			} else if was, ok := before[name]; ok {
				doc[name] = was
			} else {
				delete(doc, name)
			}
		}
	case []any:
		before := byID(stored)
		for _, elem := range doc {
			unmask(elem, before[idOf(elem)])
		}
	}
}

// byID maps the elements of an array by id; the first of equal ids counts.
func byID(array any) map[string]any {
	elems, _ := array.([]any)
	found := make(map[string]any, len(elems))
	for _, elem := range elems {
		if id := idOf(elem); id != "" && found[id] == nil {
			found[id] = elem
		}
	}
	return found
}

// idOf is the id of an object, or empty.
func idOf(v any) string {
	object, _ := v.(map[string]any)
	id, _ := object["id"].(string)
	return id
}
