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

// waitForSlot is how long a statement waits for its turn.
const waitForSlot = 5 * time.Second

// session is a client's view of the engine: one engine connection, with the
// rights of its user and the settings its statements bring along.
type session struct {
	engine *engine
	conn   *library.Conn
	lent   map[string]string // settings of the last statement that are still set
	sets   []string          // the client's own SET statements, in order

	database string // the current one; "": default

	user     user
	readonly bool // HTTP's GET: nothing is changed and nothing left
}

// newSession opens a session of a user in a database ("": default). A readonly
// one has the rights of the analyst, whichever user it is of. The caller holds
// a slot.
func newSession(ctx context.Context, e *engine, database string, who user, readonly bool) (*session, error) {
	c, err := e.Connect()
	if err != nil { // so it is with `DROP DATABASE default`, until that is there again
		return nil, library.Exceptionf("STD_EXCEPTION", "%v; or is the database default gone?", err)
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

// twin is a session like this one, for a question while this one's connection
// runs a statement. It has none of its temporary tables.
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

// become takes on the rights of the session's user. Nothing of a client's may
// run before.
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
	// The profile brings only what the settings may at most be, no values, and fixes the workload.
	for _, sql := range []string{"SET workload = '" + workloads[s.user.Role] + "'", "SET profile = '" + string(s.user.Role) + "'", "SET ROLE " + string(as), "SET " + assignments(limits) + readonly} {
		if err := s.do(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// onlyReads tells whether the session's user may do nothing else.
func (s *session) onlyReads() bool { return s.user.Role == roleAnalyst || s.user.Role == roleConsole }

// limits are the settings that the session's user has at most; nil of one without limits.
func (s *session) limits() map[string]string { return s.engine.limits[s.user.Role] }

// assignments are settings as SET takes them.
func assignments(settings map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		all = append(all, name+" = "+quoteText(settings[name]))
	}
	return strings.Join(all, ", ")
}

// parameter gives {name:Type} a value.
func (s *session) parameter(ctx context.Context, name, value string) error {
	if !isName(name) {
		return library.Exceptionf("BAD_ARGUMENTS", "Query parameter %.64q has no usable name", name)
	}
	return s.do(ctx, "SET param_"+name+" = "+quoteText(value))
}

// do runs a statement that answers nothing.
func (s *session) do(ctx context.Context, sql string) error {
	_, err := s.conn.Run(ctx, sql, "Null", nil)
	return err
}

// apply makes settings hold for the next statement, and those of the statement
// before hold no more. One that ClickHouse does not know is left out, unless it
// is important.
func (s *session) apply(ctx context.Context, settings []setting) error {
	wanted := make(map[string]string, len(settings))
	for _, set := range settings {
		if set.name == library.Marker {
			continue // of another engine, whose shard this one is
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
		// The statement before was readonly, which no SET takes back.
		if err := s.renew(ctx); err != nil {
			return err
		}
		return s.change(ctx, wanted)
	}
	return err
}

// within is the value that a setting which came beside a statement gets: drivers
// derive some from deadlines of theirs, so one beyond a limit becomes the limit.
// What a statement itself says beyond it, the engine refuses.
func (s *session) within(set setting) (value string, send bool) {
	if s.limits() == nil {
		return set.value, true
	}
	if s.onlyReads() && set.name == "readonly" && (set.value == "1" || set.value == "2") || set.name == "workload" {
		return "", false // It is so already, or stays as it is.
	}
	limit, limited := s.limits()[set.name]
	if !limited {
		return set.value, true
	}
	most, _ := strconv.ParseFloat(limit, 64)
	if asked, err := strconv.ParseFloat(set.value, 64); err == nil && (asked <= 0 || asked > most) {
		return limit, true
	}
	return set.value, true
}

// standard is the value of a setting that is not set: "" for ClickHouse's own.
func (s *session) standard(name string) string {
	if value, ok := s.limits()[name]; ok {
		return value
	}
	return library.Base[name]
}

// change sets what is wanted, and takes back what else was lent.
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
	maps.Copy(s.lent, wanted) // Before it is tried: what fails half is taken back next time.
	if len(changes) == 0 {
		return nil
	}
	return s.do(ctx, "SET "+strings.Join(changes, ", "))
}

// takeBack undoes what was lent and is not wanted any more: back to the default,
// and from there on to what the client itself had set.
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

// replay runs the client's own SET statements again. What is wanted for a
// statement is set after them.
func (s *session) replay(ctx context.Context) error {
	clear(s.lent)
	for _, set := range s.sets {
		if err := s.do(ctx, set); err != nil {
			return err
		}
	}
	return nil
}

// renew puts another engine connection in place of the session's. Temporary
// tables are lost.
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

// ran notes what a statement that succeeded has changed of the session.
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
