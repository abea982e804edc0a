package flow

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
)

// Run is a run of rows, To exclusive.
type Run struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// maxRows is above the rows of any block.
const maxRows = 1 << 30

// Encodings of runs: lengths, or one bit per row up to the last, whichever is shorter. So
// runs of a million rows take at most 163 KiB.
const (
	runsByLength = iota
	runsByBit
)

// FormatRuns encodes runs, in order and not adjacent, for a claim; empty for none.
func FormatRuns(runs []Run) string {
	if len(runs) == 0 {
		return ""
	}
	end := runs[len(runs)-1].To
	b := []byte{runsByLength}
	for last, i := 0, 0; i < len(runs); i++ {
		r := runs[i]
		b = binary.AppendUvarint(b, uint64(r.From-last))
		b = binary.AppendUvarint(b, uint64(r.To-r.From))
		last = r.To
	}
	if size := 1 + (end+7)/8; size < len(b) {
		b = make([]byte, size)
		b[0] = runsByBit
		for _, r := range runs {
			for row := r.From; row < r.To; row++ {
				b[1+row/8] |= 1 << (row % 8)
			}
		}
	}
	return base64.RawStdEncoding.EncodeToString(b)
}

// ParseRuns decodes the output of FormatRuns.
func ParseRuns(text string) ([]Run, error) {
	b, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("read runs of rows: %w", err)
	}
	if len(b) == 0 {
		return nil, nil
	}
	switch b[0] {
	case runsByLength:
		return parseLengths(b[1:])
	case runsByBit:
		var runs []Run
		for row := range 8 * (len(b) - 1) {
			if b[1+row/8]&(1<<(row%8)) != 0 {
				runs = AddRow(runs, row)
			}
		}
		return runs, nil
	}
	return nil, errors.New("read runs of rows: unknown form")
}

func parseLengths(b []byte) (runs []Run, err error) {
	next := func(limit int) int {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > uint64(limit) {
			err = errors.New("read runs of rows: corrupt")
			b = nil
			return 0
		}
		b = b[n:]
		return int(v)
	}
	for last := 0; len(b) > 0; {
		from := last + next(maxRows-last)
		last = from + next(maxRows-from)
		if err == nil && last == from {
			err = errors.New("read runs of rows: a run is empty")
		}
		if err != nil {
			return nil, err
		}
		runs = append(runs, Run{from, last})
	}
	return runs, nil
}

// AddRow adds a row, which follows all others, to runs.
func AddRow(runs []Run, row int) []Run {
	if n := len(runs) - 1; n >= 0 && runs[n].To == row {
		runs[n].To++
		return runs
	}
	return append(runs, Run{row, row + 1})
}
