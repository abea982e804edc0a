package change

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
)

// NewUserPatch makes a change of the body of a PATCH: an RFC 7396 merge patch
// of the user that subject names. Its types are checked against UserShape, its
// secrets replaced, and, unless admin, the members that give authority taken
// out.
//
// Errors: those of ReadUserPatch and of PendingPatch.Change.
func NewUserPatch(ctx context.Context, subject string, admin bool, body []byte, secrets *Secrets) (*Change, Warnings, error) {
	pending, warnings, err := ReadUserPatch(subject, admin, body, secrets)
	if err != nil {
		return nil, warnings, err
	}
	c, err := pending.Change(ctx, nil)
	return c, warnings, err
}

// PendingPatch is a change of a user whose passwords are not hashed yet. It is
// no larger than the body, while a body that is being read is some 20 times as
// large: who waits for its turn to hash holds little.
type PendingPatch struct {
	Ignored []string // JSON pointers to what only an admin may set; it was taken out

	change    *Change
	secrets   *Secrets
	passwords passwords
}

// ReadUserPatch does of NewUserPatch what needs no waiting.
//
// Errors: ErrTooLarge, *SyntaxError, *ProblemsError, ErrConflict (an id that
// is not the subject), *TargetError.
func ReadUserPatch(subject string, admin bool, body []byte, secrets *Secrets) (*PendingPatch, Warnings, error) {
	c := newChange(UserPatched, Target{User: subject}, subject)
	c.Admin = admin
	if err := c.Target.check(); err != nil {
		return nil, nil, err
	}
	patch, err := parseObject(body)
	if err != nil {
		return nil, nil, err
	}
	warnings, err := check(patch, UserShape)
	if err != nil {
		return nil, nil, err
	}
	if err := own(patch, "id", subject); err != nil {
		return nil, nil, err
	}
	delete(patch, "id") // the subject is the id, whatever is stored
	p := &PendingPatch{change: c, secrets: secrets, Ignored: withoutAuthority(patch, admin)}
	if n := len(p.Ignored); n > 0 {
		warnings[AuthorityIgnored] = n
	}
	if p.passwords, err = secrets.seal(patch); err != nil {
		return nil, nil, err
	}
	c.Members = memberNames(patch)
	if c.Body, err = encode(patch); err != nil {
		return nil, nil, err
	}
	return p, warnings, p.fits()
}

// fits fails for a patch that has grown by being written out in full.
func (p *PendingPatch) fits() error {
	if len(p.change.Body) > MaxBody {
		return ErrTooLarge
	}
	return nil
}

// Change hashes the passwords, in turn with others, and returns the change. Each
// hash takes some 20 ms of a processor, which processor waits for; nil when
// nobody needs to.
//
// Errors: ErrBusy, when too many others wait; ErrTooLarge.
func (p *PendingPatch) Change(ctx context.Context, processor Processor) (*Change, error) {
	if len(p.passwords.plain) > 0 {
		leave, err := p.secrets.enter(ctx, p.change.Target.User)
		if err != nil {
			return nil, err
		}
		defer leave()
	}
	var err error
	if p.change.Body, err = p.secrets.hashAll(ctx, p.change.Body, p.passwords, processor); err != nil {
		return nil, err
	}
	return p.change, p.fits()
}

// own fails when a body carries another identity than its request does.
func own(body map[string]any, member, identity string) error {
	if id, ok := body[member].(string); ok && id != identity {
		return ErrConflict
	}
	return nil
}

// authority lists the members that say what a user, or a project, may do.
// They are stored for those who ask; nothing here is ever decided by them.
var (
	userAuthority    = []string{"grant", "privileges", "status", "type"}
	projectAuthority = []string{"grant", "license"}
)

// isAuthority tells whether a member gives authority by its name, in any case of
// letters, as names of secrets are told: readers of JSON may not tell them apart.
func isAuthority(name string, names []string) bool {
	return slices.ContainsFunc(names, func(authority string) bool { return strings.EqualFold(name, authority) })
}

// withoutAuthority takes out of a patch what only an admin may set, and returns
// JSON pointers to it, in order.
func withoutAuthority(patch map[string]any, admin bool) (ignored []string) {
	if admin {
		return nil
	}
	var at path
	remove := func(object map[string]any, names []string) {
		for _, name := range slices.Sorted(maps.Keys(object)) {
			if isAuthority(name, names) {
				delete(object, name)
				at.in(name)
				ignored = append(ignored, at.String())
				at.out()
			}
		}
	}
	remove(patch, userAuthority)
	for _, name := range projectsOf(patch) {
		at.in(name)
		projects, _ := patch[name].([]any)
		for i, project := range projects {
			at.at(i)
			if project, ok := project.(map[string]any); ok {
				remove(project, projectAuthority)
			}
			at.out()
		}
		at.out()
	}
	return ignored
}

// projectsOf are the members of a user that hold projects, in order.
func projectsOf(user map[string]any) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(user)) {
		if strings.EqualFold(name, "projects") {
			names = append(names, name)
		}
	}
	return names
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
