package clickhouse

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"
)

// waitForConnection is how long a client waits for a free engine connection.
const waitForConnection = 5 * time.Second

// session is a client's view of the engine: one engine connection, with the
// settings its statements bring along.
type session struct {
	engine *engine
	conn   *conn
	lent   map[string]string // settings of the last statement that are still set
	sets   []string          // the client's own SET statements, in order

	role     role
	readonly bool // HTTP's GET: nothing is changed and nothing left
}

// newSession opens a session of a role in a database ("": default). A readonly
// one has the rights of the analyst, whatever its role.
func newSession(ctx context.Context, e *engine, database string, as role, readonly bool) (*session, error) {
	c, err := e.acquire(ctx, waitForConnection)
	if err != nil {
		return nil, err
	}
	if readonly {
		as = roleAnalyst
	}
	s := &session{engine: e, conn: c, lent: map[string]string{}, role: as, readonly: readonly}
	if err := s.become(ctx); err != nil {
		s.close()
		return nil, err
	}
	if database != "" && database != "default" {
		if err := s.do(ctx, "USE "+quoteName(database)); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

func (s *session) close() { s.engine.release(s.conn) }

// become takes on the session's role. Nothing of a client's may run before.
func (s *session) become(ctx context.Context) error { return s.do(ctx, "SET ROLE "+string(s.role)) }

// do runs a statement that answers nothing.
func (s *session) do(ctx context.Context, sql string) error {
	_, err := s.conn.run(ctx, sql, "Null", nil)
	return err
}

// apply makes settings hold for the next statement, and those of the statement
// before hold no more. One that ClickHouse does not know is left out, unless it
// is important.
func (s *session) apply(ctx context.Context, settings []setting) error {
	wanted := make(map[string]string, len(settings))
	for _, set := range settings {
		if s.engine.settings[set.name] {
			wanted[set.name] = set.value
		} else if set.important {
			return exceptionf("UNKNOWN_SETTING", "Unknown setting '%s'", set.name)
		}
	}
	if maps.Equal(wanted, s.lent) {
		return nil
	}
	err := s.change(ctx, wanted)
	var exception *Exception
	if errors.As(err, &exception) && exception.Name() == "READONLY" && s.lent["readonly"] != "" {
		// The statement before was readonly, which no SET takes back.
		if err := s.renew(ctx); err != nil {
			return err
		}
		return s.change(ctx, wanted)
	}
	return err
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
		if value, ok := base[name]; ok {
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
	if _, err := s.conn.run(ctx, "SELECT currentDatabase()", "RawBLOB", func(chunk []byte) error {
		database = append(database, chunk...)
		return nil
	}); err != nil {
		return err
	}
	c, err := s.engine.connect()
	if err != nil {
		return err
	}
	s.conn.disconnect()
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
	if stmt.verb == "SET" {
		s.sets = append(s.sets, stmt.text)
	}
}

var (
	textEscapes = strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	nameEscapes = strings.NewReplacer(`\`, `\\`, "`", "\\`")
)

func quoteText(value string) string { return "'" + textEscapes.Replace(value) + "'" }

func quoteName(name string) string { return "`" + nameEscapes.Replace(name) + "`" }
