package change

import (
	"context"
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
// large: a request that waits for its turn to hash holds little.
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
	if p.passwords, err = secrets.replace(patch); err != nil {
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
// no call needs to.
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

// NewFieldPut makes a change of the body of a PUT: a whole dataset field. It
// replaces what was there and revives what was deleted. id and tableId are
// filled in from the path.
//
// Errors: ErrTooLarge, *SyntaxError, *ProblemsError, ErrConflict (an id or
// tableId that is not that of the path), *TargetError.
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

// NewFieldDelete makes a change that leaves a tombstone. version is the Seq of
// the entry it deletes, 0 when there is none: the change is to be published
// only on top of that one, so that of two deletions at the same time one is
// published, and a PUT in between is noticed. An entry that is deleted already
// needs no change at all.
//
// The only error is *TargetError.
func NewFieldDelete(table, field, by string, version uint64) (*Change, error) {
	c := newChange(FieldDeleted, Target{Table: table, Field: field}, by)
	c.Expected = &version
	c.Members = []string{}
	return c, c.Target.check()
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
