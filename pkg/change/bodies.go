package change

import (
	"context"
	"maps"
	"slices"
	"strings"
)

// NewUserPatch makes a change of the body of a PATCH: an RFC 7396 merge patch of the user
// subject. Types are checked against UserShape, secrets replaced, and, unless admin,
// members that grant authority removed.
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

// PendingPatch is a change of a user whose passwords are not hashed yet. It is no larger
// than the body, whereas a parsed body takes some 20 times as much: a request that waits
// to hash holds little memory.
type PendingPatch struct {
	Ignored []string // JSON pointers to removed members that only an admin may set

	change    *Change
	secrets   *Secrets
	passwords passwords
}

// ReadUserPatch is the part of NewUserPatch that does not wait.
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
	delete(patch, "id") // the subject is the id
	p := &PendingPatch{change: c, secrets: secrets, Ignored: withoutAuthority(patch, admin)}
	if n := len(p.Ignored); n > 0 {
		warnings[AuthorityIgnored] = n
	}
	if p.passwords, err = secrets.replace(patch); err != nil {
		return nil, nil, err
	}
	c.Members = memberNames(patch)
	if c.Body, err = encode(patch); err != nil {
		return nil, nil, err
	}
	return p, warnings, p.fits()
}

// fits fails if the re-encoded patch is too large.
func (p *PendingPatch) fits() error {
	if len(p.change.Body) > MaxBody {
		return ErrTooLarge
	}
	return nil
}

// Change hashes the passwords, queued with others, and returns the change. A hash takes
// some 20 ms of a processor; processor, which may be nil, waits for one.
//
// Errors: ErrBusy, if too many others wait; ErrTooLarge.
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

// NewFieldPut makes a change of the body of a PUT: a whole dataset field, which replaces
// or revives the stored one. id and tableId come from the path.
//
// Errors: ErrTooLarge, *SyntaxError, *ProblemsError, ErrConflict (id or tableId differs
// from the path), *TargetError.
func NewFieldPut(table, field, by string, body []byte) (*Change, Warnings, error) {
	c := newChange(FieldPut, Target{Table: table, Field: field}, by)
	if err := c.Target.check(); err != nil {
		return nil, nil, err
	}
	doc, err := parseObject(body)
	if err != nil {
		return nil, nil, err
	}
	warnings, err := check(doc, FieldShape)
	if err != nil {
		return nil, nil, err
	}
	if err := own(doc, "id", field); err != nil {
		return nil, nil, err
	}
	if err := own(doc, "tableId", table); err != nil {
		return nil, nil, err
	}
	c.Members = memberNames(doc)
	doc["id"], doc["tableId"] = field, table
	if c.Body, err = encode(doc); err != nil {
		return nil, nil, err
	}
	if len(c.Body) > MaxBody {
		return nil, nil, ErrTooLarge
	}
	return c, warnings, nil
}

// NewFieldDelete makes a change that leaves a tombstone. version is the Seq of the entry
// it deletes, 0 if none: the change is published only on top of it, so that of two
// concurrent deletions one is published and a PUT in between is noticed. A deleted entry
// needs no change.
//
// The only error is *TargetError.
func NewFieldDelete(table, field, by string, version uint64) (*Change, error) {
	c := newChange(FieldDeleted, Target{Table: table, Field: field}, by)
	c.Expected = &version
	c.Members = []string{}
	return c, c.Target.check()
}

// own fails if a body names another id than its request.
func own(body map[string]any, member, identity string) error {
	if id, ok := body[member].(string); ok && id != identity {
		return ErrConflict
	}
	return nil
}

// Members that grant authority to a user or a project. Sluice stores them for readers and does not act on them.
var (
	userAuthority    = []string{"grant", "privileges", "status", "type"}
	projectAuthority = []string{"grant", "license"}
)

// isAuthority reports whether a member grants authority by its name, ignoring case like
// names of secrets, since JSON readers may ignore case.
func isAuthority(name string, names []string) bool {
	return slices.ContainsFunc(names, func(authority string) bool { return strings.EqualFold(name, authority) })
}

// withoutAuthority removes members from a patch that only an admin may set, and returns
// JSON pointers to them, in order.
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
