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

// An INSERT into a MergeTree table first writes its token to the table's
// deduplication log and then puts its part in place. A process that is killed
// between the two leaves a token without a part: the INSERT was never
// acknowledged, and when it is repeated the engine takes it for stored already
// and drops it. Its rows would be gone for ever.
//
// So before the engine opens a table, the tokens of parts that are not there
// are dropped from its log, in the engine's own way: by a further line.

// What a line of the log says.
const (
	tokenAdded   = "1"
	tokenDropped = "2"
)

// ForgetUnfinished drops the tokens of inserts that were never finished, in
// every table of the data folder. No engine may have it open.
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
			log.Warn("clickhouse: an insert was not finished when the engine was killed: it is stored when it is repeated", "table", filepath.Base(filepath.Dir(logs)), "part", part)
		}
	}
	return nil
}

// forgetUnfinishedOf does it for one table, and returns the parts that are not
// there.
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
	// A crash here leaves none of the lines or some: the next start does it
	// again.
	return missing, errors.Join(err, f.Sync(), f.Close())
}

// part is the name of a part: <partition>_<first block>_<last block>_<level>,
// with the number of a mutation behind it if there was one.
type part struct {
	name        string
	partition   string
	first, last int64
}

// parsePart reads the name of a part; others, such as tmp_insert_…, are not.
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

// partSet is the parts of a table that are on disk, merged and outdated ones
// included.
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

// cover tells whether p, or what it was merged into, is there.
func (s partSet) cover(p part) bool {
	return slices.ContainsFunc(s[p.partition], func(on part) bool { return on.first <= p.first && p.last <= on.last })
}

// remembered is what a table knows of an insert by its token.
type remembered struct {
	id    string
	parts []part // that it may have become: several when one failed and was repeated
}

// readTokens reads the logs of a table, in their order, and returns what is not
// dropped, and the name of the newest log, without the line that it was killed
// in.
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

// escapeGlob makes a pattern that matches the folder alone.
func escapeGlob(folder string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(folder)
}
