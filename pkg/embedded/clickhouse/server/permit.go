package server

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sluice/pkg/embedded/clickhouse/library"
)

// permit refuses a text that is not one statement, or not permitted to this session, beyond
// the grants of its role, which the engine checks.
func (s *session) permit(ctx context.Context, stmt statement) error {
	if err := s.inside(stmt.text); err != nil {
		return err
	}
	if s.limits() != nil && setsDefault(stmt.text) {
		return library.Exceptionf("ACCESS_DENIED", "%s: Not enough privileges: settings are given values, not DEFAULT, which would lift a limit", s.user.Role)
	}
	about := s.conn.Classify(stmt.text)
	switch {
	case about.Statements > 1:
		return errManyStatements
	case about.Statements == 0:
		return s.explainSyntax(ctx, stmt.text)
	case about.Class == library.Reads:
		return nil
	case stmt.setsRole:
		return library.Exceptionf("ACCESS_DENIED", "Roles cannot be changed: the user decides")
	case stmt.verb == "SET" || stmt.verb == "USE":
		return nil
	case s.onlyReads():
		return errOnlyReads
	case s.readonly:
		return errReadonly
	case about.Class >= library.Control && s.user.Role == roleIngester && !dropsMasked.MatchString(stmt.text):
		return library.Exceptionf("ACCESS_DENIED", "ingester: Not enough privileges: it may create tables and views, and insert")
	case s.user.Role == roleModeller:
		return s.permitModeller(ctx, stmt)
	}
	return nil
}

// dropsMasked is an ALTER that the parser of this version cannot class: it drops rows that
// were deleted before.
var dropsMasked = regexp.MustCompile(`^ALTER TABLE [\w.]+ APPLY DELETED MASK SETTINGS mutations_sync = 0$`)

// permitInsert is permit for an INSERT whose data is separate from its text.
func (s *session) permitInsert(ctx context.Context, i *insert) error {
	switch {
	case s.onlyReads():
		return errOnlyReads
	case s.readonly:
		return errReadonly
	case s.user.Role == roleModeller:
		if err := s.permitModeller(ctx, statement{text: i.head, verb: "INSERT"}); err != nil {
			return err
		}
	}
	return s.inside(i.head)
}

// modellerVerbs are the verbs of a modeller besides reading; grants limit the databases.
var modellerVerbs = strings.Fields("CREATE REPLACE INSERT ALTER DROP TRUNCATE OPTIMIZE RENAME EXCHANGE DELETE UPDATE")

// isModelEngine reports whether the modeller may use a table engine. Others write into tables
// of other databases (Buffer, Alias), or hold data in memory that no limit counts.
func isModelEngine(name string) bool {
	return strings.HasSuffix(name, "MergeTree") || name == "Null" || name == "Memory"
}

// permitModeller refuses what grants cannot: materialized views, which run in every INSERT
// into their source table, so that a failing one would halt the ingester; engines that write
// elsewhere; and writes beyond the limits.
func (s *session) permitModeller(ctx context.Context, stmt statement) error {
	if !slices.Contains(modellerVerbs, stmt.verb) {
		return library.Exceptionf("ACCESS_DENIED", "modeller: Not enough privileges: it may read, and create tables and views in the database %s", ModelsDatabase)
	}
	l := &lexer{text: stmt.text}
	var before, last token
	for t := l.next(); t.kind != tokenEnd; before, last, t = last, t, l.next() {
		engine := isWord(stmt.text, last, "ENGINE") && !isMark(stmt.text, t, '=') || isWord(stmt.text, before, "ENGINE") && isMark(stmt.text, last, '=')
		switch {
		case (isWord(stmt.text, last, "MATERIALIZED") || isWord(stmt.text, last, "LIVE") || isWord(stmt.text, last, "WINDOW")) && isWord(stmt.text, t, "VIEW"):
			return library.Exceptionf("ACCESS_DENIED", "modeller: Not enough privileges: a materialized view runs in every insert into its source table. "+
				"Create a table or a view, and run CREATE OR REPLACE TABLE or INSERT SELECT periodically")
		case engine && (t.kind == tokenWord || t.kind == tokenName) && !isModelEngine(nameOf(stmt.text, t)):
			return library.Exceptionf("ACCESS_DENIED", "modeller: Not enough privileges: tables of the engine %.64s. Use MergeTree", nameOf(stmt.text, t))
		case isWord(stmt.text, last, "INTO") && isWord(stmt.text, t, "FUNCTION"):
			return library.Exceptionf("ACCESS_DENIED", "modeller: Not enough privileges: INSERT INTO FUNCTION")
		}
	}
	if stmt.verb == "DROP" || stmt.verb == "TRUNCATE" {
		return nil
	}
	return s.room(ctx)
}

// room fails if the database models has reached its limit, or its tables in memory and the
// session's temporary tables exceed the memory of a statement.
func (s *session) room(ctx context.Context) error {
	var out []byte
	_, err := s.conn.Run(ctx, "SELECT sumIf(total_bytes, NOT held), sumIf(total_bytes, held) FROM (SELECT ifNull(total_bytes, 0) AS total_bytes, engine = 'Memory' OR is_temporary AS held "+
		"FROM system.tables WHERE database = '"+ModelsDatabase+"' OR is_temporary) FORMAT TabSeparated", "TabSeparated", func(chunk []byte) error {
		out = append(out, chunk...)
		return nil
	})
	if err != nil {
		return err
	}
	var disk, memory int64
	if _, err := fmt.Sscan(string(out), &disk, &memory); err != nil {
		return fmt.Errorf("read the size of the database %s: %w", ModelsDatabase, err)
	}
	limit, _ := strconv.ParseInt(s.limits()["max_memory_usage"], 10, 64)
	switch {
	case disk >= s.engine.models:
		return library.Exceptionf("QUOTA_EXCEEDED", "The database %s has %d of at most %d bytes: drop or truncate tables, or raise --models-bytes", ModelsDatabase, disk, s.engine.models)
	case memory >= limit:
		return library.Exceptionf("QUOTA_EXCEEDED", "Temporary tables and tables of the engine Memory have %d of at most %d bytes: drop some, or raise --modeller-memory", memory, limit)
	}
	return nil
}

// setsDefault finds `SET a = DEFAULT` and `SETTINGS a = 1, b = DEFAULT`, which bypass the
// engine's limits.
func setsDefault(text string) bool {
	l := &lexer{text: text}
	var last [3]token // those before t, the latest first
	for t := l.next(); t.kind != tokenEnd; t = l.next() {
		named := last[1].kind == tokenWord || last[1].kind == tokenName
		first := isWord(text, last[2], "SET") || isWord(text, last[2], "SETTINGS") || isMark(text, last[2], ',')
		if isWord(text, t, "DEFAULT") && isMark(text, last[0], '=') && named && first {
			return true
		}
		last = [3]token{t, last[0], last[1]}
	}
	return false
}

var (
	errOnlyReads = library.Exceptionf("ACCESS_DENIED", "analyst: Not enough privileges: it may only read. "+
		"Log in as modeller to create tables and views in the database models, or as admin (deploy/README.md says where the passwords are)")
	errReadonly = library.Exceptionf("READONLY", "Cannot execute query in readonly mode. "+
		"For queries over HTTP, method GET implies readonly. You should use method POST for modifying queries")
	errExternalTables = library.Exceptionf("ACCESS_DENIED", "Not enough privileges: external tables may be sent by the users modeller and admin")
	errWholeQueries   = library.Exceptionf("NOT_IMPLEMENTED", "As a shard the embedded engine answers only whole queries: set distributed_group_by_no_merge = 1")
	errManyStatements = library.Exceptionf("SYNTAX_ERROR", "Syntax error (Multi-statements are not allowed)")
)

// explainSyntax returns the engine's error for a text that it cannot parse as a whole. The
// text is not run: the first of several statements might parse, and run.
func (s *session) explainSyntax(ctx context.Context, text string) error {
	if err := s.do(ctx, "SELECT formatQuery("+quoteText(text)+")"); err != nil {
		return err
	}
	return library.Exceptionf("SYNTAX_ERROR", "Syntax error: this is not one statement")
}

// Access to files, addresses, or programs. Without Config.AllowFiles none of it runs, by
// three independent barriers: the names below are refused with a clear error; the engine's
// roles grant no such source or table engine (roles.go); and the process cannot access files
// or addresses (library.Confine).
//
// leaves are the functions, table functions, table and database engines, dictionary sources,
// disks, and backup destinations that do so, in lower case. A test compares them with the
// engine's lists.
var leaves = nameSet(`
	arrowstream azureblobstorage azureblobstoragecluster azurequeue cosn
	deltalake deltalakeazure deltalakeazurecluster deltalakecluster deltalakelocal deltalakes3 deltalakes3cluster
	hudi hudicluster paimon paimonazure paimonazurecluster paimoncluster paimonhdfs paimonhdfscluster paimonlocal paimons3 paimons3cluster
	iceberg icebergazure icebergazurecluster icebergcluster iceberghdfs iceberghdfscluster iceberglocal iceberglocalcluster icebergs3 icebergs3cluster
	cluster clusterallreplicas distributed remote remotesecure clickhouse
	executable executablepool file filecluster filelog filesystem
	gcs hdfs hdfscluster http jdbc kafka library keepermap
	materializedpostgresql mongodb mysql nats odbc oss postgresql rabbitmq redis s3 s3cluster s3queue sqlite
	url urlcluster ytsaurus arrowflight cassandra hive
	disk eval queryrunner
	catboostevaluate aiclassify aiembed aiextract aigenerate aitranslate reversednsquery`)

func nameSet(names string) map[string]bool {
	set := map[string]bool{}
	for _, name := range strings.Fields(names) {
		set[name] = true
	}
	return set
}

// leavesDatabase finds a call of one of these names, also as in `APPLY file`, or a clause
// that names a file.
func leavesDatabase(text string) (what string, found bool) {
	l := &lexer{text: text}
	first := peek(l)
	creates := isWord(text, first, "CREATE") || isWord(text, first, "REPLACE") || isWord(text, first, "ATTACH")
	var before, last token
	for t := l.next(); t.kind != tokenEnd; before, last, t = last, t, l.next() {
		switch {
		case isMark(text, t, '(') && isCall(text, before, last) && !(creates && isWord(text, before, "TABLE")):
			if name := nameOf(text, last); leaves[strings.ToLower(name)] {
				return name, true
			}
		case (t.kind == tokenWord || t.kind == tokenName) && isWord(text, last, "APPLY"),
			(t.kind == tokenWord || t.kind == tokenName) && isMark(text, last, '(') && isWord(text, before, "APPLY"),
			(t.kind == tokenWord || t.kind == tokenName) && isMark(text, last, '=') && isWord(text, before, "ENGINE"):
			if name := nameOf(text, t); leaves[strings.ToLower(name)] {
				return name, true
			}
		case isWord(text, t, "OUTFILE") && isWord(text, last, "INTO"):
			return "INTO OUTFILE", true
		case isWord(text, t, "INFILE") && isWord(text, last, "FROM"):
			return "FROM INFILE", true
		}
	}
	return "", false
}

// namesFile finds a file name in place of a table name.
func namesFile(text string) (what string, found bool) {
	l := &lexer{text: text}
	var last token
	for t := l.next(); t.kind != tokenEnd; last, t = t, l.next() {
		table := isMark(text, last, '.') || isMark(text, last, ',')
		for _, word := range []string{"FROM", "JOIN", "TABLE", "IN", "DESCRIBE", "DESC", "EXISTS"} {
			table = table || isWord(text, last, word)
		}
		isTable := t.kind == tokenName || t.kind == tokenText && !isMark(text, last, ',') && !isWord(text, last, "IN")
		if name := nameOf(text, t); table && isTable && strings.ContainsAny(name, "/.*?{") {
			return name, true
		}
	}
	return "", false
}

// isCall reports whether a parenthesis after last opens the arguments of a
// function, and not the columns of `INSERT INTO url (a, b)`.
func isCall(text string, before, last token) bool {
	if last.kind != tokenWord && last.kind != tokenName {
		return false
	}
	return !isWord(text, before, "INTO") && !isWord(text, before, "EXISTS") && !isMark(text, before, '.')
}

// inside refuses access to files or addresses, unless allowed.
func (s *session) inside(text string) error {
	if s.engine.allowFiles && !s.readonly {
		return nil
	}
	what, leaves := leavesDatabase(text)
	if !leaves && s.engine.allowFiles { // the engine checks only once whether a file may be read as a table
		what, leaves = namesFile(text)
	}
	switch {
	case !leaves:
		return nil
	case s.engine.allowFiles:
		return library.Exceptionf("ACCESS_DENIED", "%.64s leaves the database, which is refused over HTTP with method GET. "+
			"Use method POST", what)
	}
	return library.Exceptionf("ACCESS_DENIED", "%.64s leaves the database: start the server with --allow-files", what)
}
