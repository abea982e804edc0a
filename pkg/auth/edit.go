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

// Edit applies change to the tokens of a file, which may be missing, and replaces the file
// atomically. All other lines keep their text. Concurrent edits are serialized.
func Edit(path string, change func([]Entry) ([]Entry, error)) error {
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close() // releases the lock
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

// edit is the content of a token file after a change. Unchanged lines keep their text.
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
	text := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	for i, entry := range was {
		n := slices.IndexFunc(will, func(e Entry) bool { return e.SHA256 == entry.SHA256 })
		if n < 0 || !reflect.DeepEqual(entry, will[n]) {
			at := slices.IndexFunc(text, func(line string) bool { return strings.HasPrefix(line, "- {") && strings.Contains(line, entry.SHA256) })
			switch {
			case at < 0:
				return nil, fmt.Errorf("token %d is not a single line that begins with \"- {\": change it by hand", i+1)
			case n < 0:
				text = slices.Delete(text, at, at+1)
			default:
				text[at] = will[n].Line()
			}
		}
		if n >= 0 {
			will = slices.Delete(will, n, n+1)
		}
	}
	at := slices.IndexFunc(text, func(line string) bool { return strings.TrimSpace(line) == "..." })
	if at < 0 {
		at = len(text)
	}
	for _, entry := range will {
		text = slices.Insert(text, at, entry.Line())
		at++
	}
	text = slices.DeleteFunc(text, func(line string) bool { return strings.TrimSpace(line) == "[]" })
	if !slices.ContainsFunc(text, func(line string) bool { return strings.HasPrefix(line, "-") }) {
		text = append(text, "[]")
	}
	edited := []byte(strings.Join(text, "\n") + "\n")
	if _, err := entriesOf(edited); err != nil {
		return nil, fmt.Errorf("cannot be changed by a program: %w", err)
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
