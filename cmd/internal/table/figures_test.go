package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestPageOfTwo saves figures, reads them again, and shows others beside them.
func TestPageOfTwo(t *testing.T) {
	before := &figures{
		Taken: time.Date(2025, 11, 21, 5, 0, 0, 0, time.UTC), Acknowledged: 1_000_000, Rate: 125_562, EngineStored: 5.93,
		Merged:  []size{{"records", 19.147}, {"jobs", 0.994}, {"gone", 1}},
		Queries: []queryTime{{"q01", 19.97}},
	}
	file := filepath.Join(t.TempDir(), "before.json")
	if err := before.save(file); err != nil {
		t.Fatal(err)
	}
	read, err := readFigures(file)
	if err != nil {
		t.Fatal(err)
	}
	now := &figures{
		Taken: before.Taken.Add(time.Hour), Acknowledged: 1_000_000, Rate: 250_000,
		Merged:  []size{{"records", 14}, {"jobs", 0.5}},
		Queries: []queryTime{{"q01", 21}},
	}
	var text strings.Builder
	if err := writePage(&text, now, read); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"|  | 2025-11-21 05:00 UTC | 2025-11-21 06:00 UTC |\n|---|--:|--:|\n",
		"| drained, records/s | 125562 | 250000 |\n",
		"| `records` in one part, B | 19.147 | 14.000 |\n",
		"| `gone` in one part, B | 1.000 | none |\n",
		"| all but records in one part, B | 1.994 | 0.500 |\n",
		"| q01, ms | 19.97 | 21.00 |\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, &text)
		}
	}
}

// TestRatiosPage marks what takes more than one and a half times as long.
func TestRatiosPage(t *testing.T) {
	f := &figures{Taken: time.Date(2025, 11, 21, 5, 0, 0, 0, time.UTC), Acknowledged: 2_000_000, Engine: "26.7.2.1", Load: "1, 1, 1"}
	var text strings.Builder
	if err := writeRatios(&text, f, []ratio{{"q01", 10, 15}, {"q02", 10, 15.1}}, []ratio{{"q01", 20, 5}, {"q02", 8, 12}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"the same SQL over the same 2 million records",
		"| q01 | 10.0 | 15.0 | 1.50 | 20.0 | 5.0 | 0.25 |\n| q02 | 10.0 | 15.1 | **1.51** | 8.0 | 12.0 | 1.50 |\n",
		"Within 1.5: 1 of 2 as merges leave the tables, 2 in one part.\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, &text)
		}
	}
}
