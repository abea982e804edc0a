package auth

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"
)

// Edit replaces a token file, which may be missing, by one with the tokens that change
// returns, given those that are there. What change leaves as it was keeps its text, with
// the comments around it. Programs that follow the file see the old one or the new one.
// Two that edit it take turns.
func Edit(path string, change func([]Entry) ([]Entry, error)) error {
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close() // and with it the lock
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", folder.Name(), err)
	}
	content, err := readFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	edited, err := edit(content, change)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	mode := os.FileMode(0o600)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	beside := path + ".new"
	file, err := os.OpenFile(beside, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(edited)
	if err := errors.Join(err, file.Chmod(mode), file.Sync(), file.Close()); err != nil {
		return errors.Join(err, os.Remove(beside))
	}
	return os.Rename(beside, path)
}

// Read returns the tokens of a file, in order, expired ones too.
func Read(path string) ([]Entry, error) {
	content, err := readFile(path)
	if err != nil {
		return nil, err
	}
	all, err := entriesOf(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

// edit is the content of a token file after a change.
func edit(content []byte, change func([]Entry) ([]Entry, error)) ([]byte, error) {
	if len(bytes.TrimSpace(content)) == 0 {
		content = []byte("[]\n")
	}
	was, err := entriesOf(content)
	if err != nil {
		return nil, err
	}
	will, err := change(slices.Clone(was))
	if err != nil {
		return nil, err
	}
	text, begins, ends, err := places(content)
	if err != nil {
		return nil, err
	}
	var out []string
	at := 0
	for i, entry := range was {
		out = append(out, text[at:begins[i]]...)
		at = ends[i]
		n := slices.IndexFunc(will, func(e Entry) bool { return e.SHA256 == entry.SHA256 })
		switch {
		case n < 0:
			continue
		case reflect.DeepEqual(entry, will[n]):
			out = append(out, text[begins[i]:ends[i]]...)
		default:
			out = append(out, will[n].Line())
		}
		will = slices.Delete(will, n, n+1)
	}
	kept := len(out)
	for _, entry := range will {
		out = append(out, entry.Line())
	}
	rest := text[at:]
	if len(was) == 0 { // behind the comments, in the place of the empty list
		out = append(slices.Clone(text[:ends[0]-1]), out[kept:]...)
		rest = text[ends[0]:]
	}
	if !slices.ContainsFunc(out, func(line string) bool { return strings.HasPrefix(line, "-") }) {
		out = append(out, "[]")
	}
	edited := []byte(strings.TrimRight(strings.Join(append(out, rest...), "\n"), "\n") + "\n")
	if _, err := entriesOf(edited); err != nil {
		return nil, fmt.Errorf("it cannot be changed by a program: %w", err)
	}
	return edited, nil
}

// entriesOf are the tokens of a file, in order.
func entriesOf(content []byte) ([]Entry, error) {
	if _, err := parseTable(content, ""); err != nil {
		return nil, err
	}
	var list []line
	if err := yaml.Unmarshal(content, &list); err != nil {
		return nil, err
	}
	all := make([]Entry, len(list))
	for i, item := range list {
		e, err := item.parse()
		if err != nil {
			return nil, err
		}
		all[i] = Entry{Subject: item.Subject, Source: item.Source, SHA256: item.SHA256, Scopes: item.Scopes, Expires: e.expires, Tables: item.Tables, Tenants: item.Tenants, Rate: item.Rate, Exclude: item.Exclude}
	}
	return all, nil
}

// places are the lines of a token file, and where in them each token begins and ends;
// of an empty list where it is itself.
func places(content []byte) (text []string, begins, ends []int, err error) {
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		return nil, nil, nil, err
	}
	list := document.Content[0]
	text = strings.Split(string(content), "\n")
	if len(list.Content) == 0 {
		return text, nil, []int{list.Line}, nil
	}
	for i, token := range list.Content {
		begin := token.Line - 1
		if list.Style&yaml.FlowStyle != 0 || !strings.HasPrefix(text[begin], "-") {
			return nil, nil, nil, fmt.Errorf("token %d: a program changes the file only if each token begins a line with \"- \"", i+1)
		}
		begins = append(begins, begin)
	}
	for i := range begins {
		end := len(text)
		if i+1 < len(begins) {
			end = begins[i+1]
		}
		for isBetween(text[end-1]) {
			end--
		}
		ends = append(ends, end)
	}
	return text, begins, ends, nil
}

// isBetween tells whether a line belongs to no token: a comment, the end of the
// document, or an empty one.
func isBetween(line string) bool {
	line = strings.TrimSpace(line)
	return line == "" || line == "..." || strings.HasPrefix(line, "#")
}
