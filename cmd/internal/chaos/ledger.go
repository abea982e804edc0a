package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"sluice/cmd/internal/oracle"
)

// ledger is the file of a source's sent records and their outcomes, input of the oracle.
type ledger struct {
	source string
	path   string

	mu        sync.Mutex
	file      *os.File
	records   int64 // lines
	abandoned int64 // lines of abandoned records
	forgotten map[string]bool
	expired   string // file of the expired rows; empty without any
	live      int64  // lines before the expiry
}

// entry is a line of a ledger.
type entry struct {
	oracle.Line
	Request string `json:"request,omitempty"` // idempotency key of records without identity
}

func newLedger(dir, source string) (*ledger, error) {
	l := &ledger{source: source, path: filepath.Join(dir, "posted-"+source), forgotten: map[string]bool{}}
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	l.file = file
	return l, err
}

// note writes the outcome of a body: a record, or an array of records.
func (l *ledger) note(body []byte, acked bool) error { return l.noteRequest("", body, acked) }

func (l *ledger) noteRequest(request string, body []byte, acked bool) error {
	records := []json.RawMessage{body}
	if body = bytes.TrimSpace(body); len(body) > 0 && body[0] == '[' {
		records = nil
		if err := json.Unmarshal(body, &records); err != nil {
			return fmt.Errorf("write the ledger of %s: %w", l.source, err)
		}
	}
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	for _, record := range records {
		if err := encoder.Encode(entry{oracle.Line{Source: l.source, Acked: acked, Record: record}, request}); err != nil {
			return fmt.Errorf("write the ledger of %s: %w", l.source, err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records += int64(len(records))
	if !acked {
		l.abandoned += int64(len(records))
	}
	_, err := l.file.Write(lines.Bytes())
	return err
}

// forget removes an instance from the expected records.
func (l *ledger) forget(instance string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgotten[instance] = true
}

// expire removes the rows in a file from the expected rows.
func (l *ledger) expire(rows string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expired, l.live = rows, l.records
}

// oracle computes the expected tables from the ledger.
func (l *ledger) oracle() (*oracle.Oracle, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := oracle.New(l.source)
	o.Forgotten = l.forgotten
	if l.expired != "" {
		if err := readWith(l.expired, o.ReadExpired); err != nil {
			return nil, err
		}
	}
	return o, readWith(l.path, o.Read)
}

func readWith(path string, read func(io.Reader) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return read(file)
}

// acknowledged calls do with those of the first lines that are acknowledged, and their numbers.
func (l *ledger) acknowledged(lines int64, do func(n int64, e entry) error) error {
	file, err := os.Open(l.path)
	if err != nil {
		return err
	}
	defer file.Close()
	decoder := json.NewDecoder(file)
	for n := range lines {
		var e entry
		if err := decoder.Decode(&e); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if e.Acked {
			if err := do(n, e); err != nil {
				return err
			}
		}
	}
	return nil
}

// written returns the number of lines of the ledger.
func (l *ledger) written() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.records
}

func (l *ledger) close() { _ = l.file.Close() } // every line is written
