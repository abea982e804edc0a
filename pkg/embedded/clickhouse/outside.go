package clickhouse

import "strings"

// What leaves the database: it reads or writes files, connects elsewhere, or
// runs programs. Without Config.AllowFiles none of it runs. There are three
// walls, each of which would do alone for most of it: the names below are
// refused with a clear error; the engine's roles grant no source and no such
// table engine (roles.go); and the process itself can reach neither files nor
// addresses (confine_linux.go).
//
// leaves are the functions, table functions, table and database engines, sources
// of dictionaries, disks and places of backups that leave it, in lower case. A
// test compares them with what the engine lists.
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

// leavesDatabase looks for a call of one of these names, also as in
// `APPLY file`, and for a clause that names a file, and returns what it found.
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

// namesFile looks for the name of a file where a table's is expected.
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

// isCall tells whether a parenthesis after last opens the arguments of a
// function, and not the columns of `INSERT INTO url (a, b)`.
func isCall(text string, before, last token) bool {
	if last.kind != tokenWord && last.kind != tokenName {
		return false
	}
	return !isWord(text, before, "INTO") && !isWord(text, before, "EXISTS") && !isMark(text, before, '.')
}

// inside refuses a text that leaves the database, unless that is allowed.
func (s *session) inside(text string) error {
	if s.engine.allowFiles && !s.readonly {
		return nil
	}
	what, leaves := leavesDatabase(text)
	if !leaves && s.engine.allowFiles { // The engine asks only once whether a file may be read as a table.
		what, leaves = namesFile(text)
	}
	switch {
	case !leaves:
		return nil
	case s.engine.allowFiles:
		return exceptionf("ACCESS_DENIED", "%.64s leaves the database, which a query over HTTP with method GET may not. "+
			"Use method POST", what)
	}
	return exceptionf("ACCESS_DENIED", "%.64s leaves the database: it is off unless the server is started with --allow-files", what)
}
