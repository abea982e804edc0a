package server

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/pkg/embedded/clickhouse/library"
)

// waitForSlot bounds a statement's wait for a slot.
const waitForSlot = 5 * time.Second

// session is a client's session: one engine connection, with the rights of its user and the
// settings of its statements.
type session struct {
	engine *engine
	conn   *library.Conn
	lent   map[string]string // settings of the last statement, still set
	sets   []string          // the client's own SET statements, in order

	database string // the current one; "": default

	user     user
	readonly bool // HTTP GET: no changes and no access to files or addresses
}

// newSession opens a session of a user in a database ("": default). A readonly one has the
// rights of the analyst. The caller holds a slot.
func newSession(ctx context.Context, e *engine, database string, who user, readonly bool) (*session, error) {
	c, err := e.Connect()
	if err != nil { // also after `DROP DATABASE default`, until it is recreated
		return nil, library.Exceptionf("STD_EXCEPTION", "%v: check that the database default exists", err)
	}
	s := &session{engine: e, conn: c, lent: map[string]string{}, user: who, readonly: readonly}
	if err := s.become(ctx); err != nil {
		s.close()
		return nil, err
	}
	if database != "" && database != "default" {
		if err := s.use(ctx, database); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

// use changes the current database.
func (s *session) use(ctx context.Context, database string) error {
	if err := s.do(ctx, "USE "+quoteName(database)); err != nil {
		return err
	}
	s.database = database
	return nil
}

// twin is an equal session, for a query while this one's connection is busy. It lacks the
// temporary tables.
func (s *session) twin(ctx context.Context) (*session, error) {
	t, err := newSession(ctx, s.engine, s.database, s.user, s.readonly)
	if err != nil {
		return nil, err
	}
	t.sets = s.sets
	if err := t.replay(ctx); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (s *session) close() { s.conn.Disconnect() }

// become sets the rights of the session's user, before any statement of a client.
func (s *session) become(ctx context.Context) error {
	as := s.user.Role
	if s.readonly {
		as = roleAnalyst
	}
	limits := s.limits()
	if limits == nil {
		return s.do(ctx, "SET ROLE "+string(as))
	}
	readonly := ""
	if s.onlyReads() {
		readonly = ", readonly = 2"
	}
	// The profile sets only the limits of settings, and fixes the workload.
	for _, sql := range []string{"SET workload = '" + workloads[s.user.Role] + "'", "SET profile = '" + string(s.user.Role) + "'", "SET ROLE " + string(as), "SET " + assignments(limits) + readonly} {
		if err := s.do(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// onlyReads reports whether the session's user may only read.
func (s *session) onlyReads() bool { return s.user.Role == roleAnalyst || s.user.Role == roleConsole }

// limits are the maximum settings of the session's user; nil: none.
func (s *session) limits() map[string]string { return s.engine.limits[s.user.Role] }

// assignments formats settings for SET.
func assignments(settings map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		all = append(all, name+" = "+quoteText(settings[name]))
	}
	return strings.Join(all, ", ")
}

// parameter sets the value of {name:Type}.
func (s *session) parameter(ctx context.Context, name, value string) error {
	if !isName(name) {
		return library.Exceptionf("BAD_ARGUMENTS", "Query parameter %.64q has an invalid name", name)
	}
	return s.do(ctx, "SET param_"+name+" = "+quoteText(value))
}

// do runs a statement without a result.
func (s *session) do(ctx context.Context, sql string) error {
	_, err := s.conn.Run(ctx, sql, "Null", nil)
	return err
}

// apply replaces the settings of the last statement by those of the next. Unknown ones are
// ignored, unless they are important.
func (s *session) apply(ctx context.Context, settings []setting) error {
	wanted := make(map[string]string, len(settings))
	for _, set := range settings {
		if set.name == library.Marker {
			continue // of an engine that has this one as a shard
		}
		if s.engine.Settings[set.name] {
			if value, send := s.within(set); send {
				wanted[set.name] = value
			}
		} else if set.important {
			return library.Exceptionf("UNKNOWN_SETTING", "Unknown setting '%s'", set.name)
		}
	}
	if maps.Equal(wanted, s.lent) {
		return nil
	}
	err := s.change(ctx, wanted)
	var exception *library.Exception
	if errors.As(err, &exception) && exception.Name() == "READONLY" && s.lent["readonly"] != "" {
		// The last statement was readonly, which no SET reverts.
		if err := s.renew(ctx); err != nil {
			return err
		}
		return s.change(ctx, wanted)
	}
	return err
}

// within is the value of a setting sent beside a statement: drivers derive some from their
// deadlines, so a value beyond a limit becomes the limit. The engine refuses such values in
// the statement itself.
func (s *session) within(set setting) (value string, send bool) {
	if s.limits() == nil {
		return set.value, true
	}
	if s.onlyReads() && set.name == "readonly" && (set.value == "1" || set.value == "2") || set.name == "workload" {
		return "", false // already set, or not changeable
	}
	limit, limited := s.limits()[set.name]
	if !limited {
		return set.value, true
	}
	highest, _ := strconv.ParseFloat(limit, 64)
	if asked, err := strconv.ParseFloat(set.value, 64); err == nil && (asked <= 0 || asked > highest) {
		return limit, true
	}
	return set.value, true
}

// standard is the default of a setting; "": ClickHouse's.
func (s *session) standard(name string) string {
	if value, ok := s.limits()[name]; ok {
		return value
	}
	return library.Base[name]
}

// change sets the wanted settings and reverts the other lent ones.
func (s *session) change(ctx context.Context, wanted map[string]string) error {
	if err := s.takeBack(ctx, wanted); err != nil {
		return err
	}
	var changes []string
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if value, ok := s.lent[name]; !ok || value != wanted[name] {
			changes = append(changes, name+" = "+quoteText(wanted[name]))
		}
	}
	maps.Copy(s.lent, wanted) // before the attempt, so that a partial failure is reverted next time
	if len(changes) == 0 {
		return nil
	}
	return s.do(ctx, "SET "+strings.Join(changes, ", "))
}

// takeBack reverts lent settings that are no longer wanted: to the default, then to the
// client's own SET.
func (s *session) takeBack(ctx context.Context, wanted map[string]string) error {
	var changes []string
	for _, name := range slices.Sorted(maps.Keys(s.lent)) {
		if _, stays := wanted[name]; stays {
			continue
		}
		if value := s.standard(name); value != "" {
			changes = append(changes, name+" = "+quoteText(value))
		} else {
			changes = append(changes, name+" = DEFAULT")
		}
	}
	if len(changes) == 0 {
		return nil
	}
	if err := s.do(ctx, "SET "+strings.Join(changes, ", ")); err != nil {
		return err
	}
	return s.replay(ctx)
}

// replay runs the client's own SET statements again, before the wanted settings of a
// statement are set.
func (s *session) replay(ctx context.Context) error {
	clear(s.lent)
	for _, set := range s.sets {
		if err := s.do(ctx, set); err != nil {
			return err
		}
	}
	return nil
}

// renew replaces the session's engine connection. Temporary tables are lost.
func (s *session) renew(ctx context.Context) error {
	var database []byte
	if _, err := s.conn.Run(ctx, "SELECT currentDatabase()", "RawBLOB", func(chunk []byte) error {
		database = append(database, chunk...)
		return nil
	}); err != nil {
		return err
	}
	c, err := s.engine.Connect()
	if err != nil {
		return err
	}
	s.conn.Disconnect()
	s.conn = c
	if err := s.become(ctx); err != nil {
		return err
	}
	if err := s.do(ctx, "USE "+quoteName(string(database))); err != nil {
		return err
	}
	return s.replay(ctx)
}

// ran records the changes of the session by a successful statement.
func (s *session) ran(stmt statement) {
	switch stmt.verb {
	case "SET":
		s.sets = append(s.sets, stmt.text)
	case "USE":
		l := &lexer{text: stmt.text}
		l.next()
		s.database = nameOf(stmt.text, l.next())
	}
}

var (
	textEscapes = strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	nameEscapes = strings.NewReplacer(`\`, `\\`, "`", "\\`")
)

func quoteText(value string) string { return "'" + textEscapes.Replace(value) + "'" }

func quoteName(name string) string { return "`" + nameEscapes.Replace(name) + "`" }
