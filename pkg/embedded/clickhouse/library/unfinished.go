package library

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// An INSERT into a MergeTree table writes its token to the table's deduplication log and
// then moves its part into place. A process killed between the two leaves a token without a
// part: the INSERT was never acknowledged, yet a retry is deduplicated, and its rows are
// lost.
//
// So before the engine opens a table, tokens of missing parts are dropped from its log, in
// the engine's way: by appending a line.

// Operations in a line of the log.
const (
	tokenAdded   = "1"
	tokenDropped = "2"
)

// ForgetUnfinished drops the tokens of unfinished inserts in every table of the data folder.
// No engine may have it open.
func ForgetUnfinished(data string, log *slog.Logger) error {
	tables, err := filepath.Glob(filepath.Join(escapeGlob(data), "store", "*", "*", "deduplication_logs"))
	if err != nil {
		return err
	}
	for _, logs := range tables {
		parts, err := forgetUnfinishedOf(filepath.Dir(logs), logs)
		if err != nil {
			return fmt.Errorf("look for unfinished inserts: %w", err)
		}
		for _, part := range parts {
			log.Warn("clickhouse: dropped the token of an insert that a kill interrupted, so that a retry stores it", "table", filepath.Base(filepath.Dir(logs)), "part", part)
		}
	}
	return nil
}

// forgetUnfinishedOf does so for one table, and returns the missing parts.
func forgetUnfinishedOf(table, logs string) ([]string, error) {
	present, err := partsIn(table)
	if err != nil {
		return nil, err
	}
	tokens, newest, err := readTokens(logs)
	if err != nil || newest == "" {
		return nil, err
	}
	var lines bytes.Buffer
	var missing []string
	for _, token := range tokens {
		if !slices.ContainsFunc(token.parts, present.cover) {
			part := token.parts[len(token.parts)-1]
			fmt.Fprintf(&lines, "%s\t%s\t%s\n", tokenDropped, part.name, token.id)
			missing = append(missing, part.name)
		}
	}
	if missing == nil {
		return nil, nil
	}
	f, err := os.OpenFile(newest, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(lines.Bytes())
	// A crash here leaves some of the lines: the next start adds the rest.
	return missing, errors.Join(err, f.Sync(), f.Close())
}

// part is the name of a part: <partition>_<first block>_<last block>_<level>, and after a
// mutation its number.
type part struct {
	name        string
	partition   string
	first, last int64
}

// parsePart parses the name of a part; false for others, such as tmp_insert_….
func parsePart(name string) (p part, ok bool) {
	fields := strings.Split(name, "_")
	if len(fields) != 4 && len(fields) != 5 {
		return part{}, false
	}
	p = part{name: name, partition: fields[0]}
	for i, field := range fields[1:] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return part{}, false
		}
		switch i {
		case 0:
			p.first = n
		case 1:
			p.last = n
		}
	}
	return p, true
}

// partSet is the parts of a table on disk, merged and outdated ones included.
type partSet map[string][]part // by partition

func partsIn(table string) (partSet, error) {
	entries, err := os.ReadDir(table)
	if err != nil {
		return nil, err
	}
	set := partSet{}
	for _, entry := range entries {
		if p, ok := parsePart(entry.Name()); ok {
			set[p.partition] = append(set[p.partition], p)
		}
	}
	return set, nil
}

// cover reports whether p, or the part it was merged into, exists.
func (s partSet) cover(p part) bool {
	return slices.ContainsFunc(s[p.partition], func(on part) bool { return on.first <= p.first && p.last <= on.last })
}

// remembered is a token in a table's deduplication log.
type remembered struct {
	id    string
	parts []part // its possible parts: several if an insert failed and was retried
}

// readTokens reads the logs of a table in order. It returns the tokens that are not dropped,
// and the newest log, truncated before a partial last line.
func readTokens(logs string) (tokens []remembered, newest string, err error) {
	names, err := filepath.Glob(filepath.Join(escapeGlob(logs), "deduplication_log_*.txt"))
	if err != nil || len(names) == 0 {
		return nil, "", err
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(logNumber(a), logNumber(b)) })
	newest = names[len(names)-1]
	known := map[string]int{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, "", err
		}
		whole := text[:bytes.LastIndexByte(text, '\n')+1]
		if name == newest && len(whole) < len(text) {
			if err := os.Truncate(name, int64(len(whole))); err != nil {
				return nil, "", err
			}
		}
		for line := range strings.Lines(string(whole)) {
			operation, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
			name, id, _ := strings.Cut(rest, "\t")
			p, ok := parsePart(name)
			i, seen := known[id]
			switch {
			case operation == tokenDropped && seen:
				tokens[i].parts = nil
			case operation == tokenAdded && ok && seen:
				tokens[i].parts = append(tokens[i].parts, p)
			case operation == tokenAdded && ok:
				known[id] = len(tokens)
				tokens = append(tokens, remembered{id: id, parts: []part{p}})
			}
		}
	}
	return slices.DeleteFunc(tokens, func(t remembered) bool { return t.parts == nil }), newest, nil
}

func logNumber(name string) int {
	text := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(name), "deduplication_log_"), ".txt")
	n, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return n
}

// escapeGlob escapes a folder for use in a pattern.
func escapeGlob(folder string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(folder)
}
